// What has been taken of each GPU's memory: by contexts and allocations of this process, and, where
// MAESTRO_HOSTED_LEDGER names a file, of every process that names the same one. GPUs are those of the host,
// whatever their number in a process. A process that is killed leaves what it took. Not thread-safe: callers
// hold the runtime's lock.
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

    void take(int gpu, std::uint64_t bytes);
    void give_back(int gpu, std::uint64_t bytes);
    std::uint64_t taken(int gpu) const;

private:
    std::atomic<std::uint64_t>* all_;
    std::array<std::uint64_t, kGpus> own_{};
};

}  // namespace hosted
