// Runs the grid of a launch on one host thread: one block at a time, the threads of a block in a random order
// that changes at every barrier and shuffle, so that missing synchronization shows. A thread starts on the
// stack of the previous one. If it has to wait, it keeps that stack, and others continue on another one.
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

/// A kernel launch. `body(arguments)` runs once per thread. The caller owns `arguments`.
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

    /// Runs a launch, which must respect the device's limits.
    void run(const Launch& launch);

    /// Implements the functions of threads.hpp for the running thread.
    void barrier(const std::source_location& where);
    std::uint64_t exchange(Exchange kind, unsigned mask, std::uint64_t value, unsigned source,
                           const std::source_location& where);
    unsigned lane() const { return lane_; }

private:
    static constexpr unsigned kLanes = 32, kWarps = 32;

    struct Lane {
        Fiber* fiber = nullptr;  // the stack on which the lane waits
        std::uint64_t value = 0, result = 0;
        unsigned source = 0;
    };
    /// An exchange between the lanes in `mask`. It completes when all of them have arrived.
    struct WarpSync {
        Exchange kind;
        unsigned mask, arrived;
        std::source_location where;
    };
    /// Masks of lanes. A lane that is neither ready nor exited waits or is running.
    struct Warp {
        std::uint32_t present = 0, ready = 0, started = 0, exited = 0, at_barrier = 0;
        std::array<Lane, kLanes> lanes;
        std::vector<WarpSync> syncs;
    };

    void prepare(const Launch& launch);
    bool start_block();
    void run_threads();
    Fiber* choose_next();
    void exit_thread();
    bool choose_thread();
    void suspend();
    void open_barrier();
    void complete(const WarpSync& sync);
    Fiber& idle_fiber();
    void switch_to(Fiber& from, Fiber& to);
    void make_ready(Warp& warp, std::uint32_t lanes);
    unsigned index(const Warp& warp) const { return static_cast<unsigned>(&warp - warps_.data()); }
    std::uint32_t bit() const { return 1u << lane_; }

    std::string describe_launch() const;
    std::string describe_block() const;
    std::string describe(const Warp& warp, unsigned lane) const;
    [[noreturn]] void report_misuse(const std::string& what, const std::source_location& where) const;
    [[noreturn]] void report_deadlock() const;

    Random& random_;
    const Launch* launch_ = nullptr;
    std::vector<uint3> indices_;  // threadIdx of every thread of a block
    std::uint64_t blocks_ = 0, blocks_left_ = 0, block_ = 0, stride_ = 0;

    std::array<Warp, kWarps> warps_;
    std::uint32_t warps_ready_ = 0;
    Warp* warp_ = nullptr;  // warp and lane of the running thread
    unsigned lane_ = 0;
    unsigned live_ = 0, waiting_ = 0;  // threads that have not exited, and threads at the barrier
    std::source_location barrier_;

    std::vector<std::unique_ptr<Fiber>> fibers_;
    std::vector<Fiber*> idle_;
    Fiber* fiber_ = nullptr;   // the running one
    Fiber* caller_ = nullptr;  // the stack of run()'s caller
};

}  // namespace hosted
