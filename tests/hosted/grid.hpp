// Runs the grid of a launch on one thread of the host: block after block, the threads of a block in a random
// order that changes at every barrier and shuffle. A thread starts on the stack of the one before and keeps
// it if it has to wait.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "fiber.hpp"
#include "include/hosted/threads.hpp"
#include "random.hpp"

namespace hosted {

/// `arguments` is what `body` gets, once for each thread, and belongs to the caller.
struct Launch {
    void (*body)(const void* arguments);
    const void* arguments;
    dim3 grid, block;
    std::size_t shared_bytes;
    std::source_location site;
    std::uint64_t number;
};

class Grid {
public:
    explicit Grid(Random& random) : random_(random) {}

    /// The launch must be within a device's limits.
    void run(const Launch& launch);

    /// For the thread that runs: what threads.hpp declares.
    void barrier(const std::source_location& where);
    std::uint64_t exchange(Exchange kind, unsigned mask, std::uint64_t value, unsigned source,
                           const std::source_location& where);
    unsigned lane() const { return lane_; }

private:
    static constexpr unsigned kLanes = 32, kWarps = 32;

    struct Lane {
        Fiber* fiber = nullptr;  // that it waits on
        std::uint64_t value = 0, result = 0;
        unsigned source = 0;
    };
    /// Lanes of a warp that exchange values: those of `mask`, as soon as all have arrived.
    struct Meeting {
        Exchange kind;
        unsigned mask, arrived;
        std::source_location where;
    };
    /// Masks of lanes. A lane that is neither ready nor exited waits, or runs.
    struct Warp {
        std::uint32_t present = 0, ready = 0, started = 0, exited = 0, at_barrier = 0;
        std::array<Lane, kLanes> lanes;
        std::vector<Meeting> meetings;
    };

    void prepare(const Launch& launch);
    bool start_block();
    void work();
    Fiber* follow();
    void leave();
    bool choose();
    void wait();
    void open_barrier();
    void complete(const Meeting& meeting);
    Fiber& idle();
    void go(Fiber& from, Fiber& to);
    void let_on(Warp& warp, std::uint32_t lanes);
    unsigned index(const Warp& warp) const { return static_cast<unsigned>(&warp - warps_.data()); }
    std::uint32_t bit() const { return 1u << lane_; }

    std::string describe_launch() const;
    std::string describe_block() const;
    std::string describe(const Warp& warp, unsigned lane) const;
    [[noreturn]] void refuse(const std::string& what, const std::source_location& where) const;
    [[noreturn]] void stuck() const;

    Random& random_;
    const Launch* launch_ = nullptr;
    std::vector<uint3> indices_;  // threadIdx of every thread of a block
    std::uint64_t blocks_ = 0, blocks_left_ = 0, block_ = 0, stride_ = 0;

    std::array<Warp, kWarps> warps_;
    std::uint32_t warps_ready_ = 0;
    Warp* warp_ = nullptr;  // and lane: of the thread that runs
    unsigned lane_ = 0;
    unsigned live_ = 0, waiting_ = 0;  // threads that have not exited; those at the barrier
    std::source_location barrier_;

    std::vector<std::unique_ptr<Fiber>> fibers_;
    std::vector<Fiber*> idle_;
    Fiber* fiber_ = nullptr;  // that runs
    Fiber* home_ = nullptr;   // of the caller of run()
};

}  // namespace hosted
