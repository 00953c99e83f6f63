// Counts the used memory of each GPU: contexts and allocations of this process and, where
// MAESTRO_HOSTED_LEDGER names a file, of all processes that use the same file. GPU numbers are those of the
// host, which may differ from a process' device numbers. The memory of a killed process stays counted. Not
// thread-safe: callers hold the runtime's lock.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace hosted {

class Ledger {
public:
    static constexpr int kGpus = 64;

    Ledger();
    ~Ledger();
    Ledger(const Ledger&) = delete;
    Ledger& operator=(const Ledger&) = delete;

    void add(int gpu, std::uint64_t bytes);
    void subtract(int gpu, std::uint64_t bytes);
    std::uint64_t used(int gpu) const;

private:
    std::atomic<std::uint64_t>* shared_;          ///< of all processes
    std::array<std::uint64_t, kGpus> process_{};  ///< of this process
};

}  // namespace hosted
