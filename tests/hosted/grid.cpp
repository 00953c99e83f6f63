#include "grid.hpp"

#include <fmt/core.h>

#include <numeric>

#include "shared_memory.hpp"
#include "stop.hpp"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace hosted {
namespace {

Grid* running = nullptr;

/// The number of a random set bit of `mask`, which is not 0.
unsigned random_bit(std::uint32_t mask, std::uint64_t draw) {
    const unsigned rotation = draw & 31;
    return (static_cast<unsigned>(std::countr_zero(std::rotr(mask, static_cast<int>(rotation)))) + rotation) &
           31;
}

}  // namespace

void barrier(const std::source_location& where) {
    running->barrier(where);
}
std::uint64_t exchange(Exchange kind, unsigned mask, std::uint64_t value, unsigned source,
                       const std::source_location& where) {
    return running->exchange(kind, mask, value, source, where);
}
unsigned lane() {
    return running->lane();
}

void Grid::run(const Launch& launch) {
    prepare(launch);
    open_shared_memory(launch.shared_bytes);
    Fiber caller;
    caller_ = fiber_ = &caller;
    running = this;
    start_block();
    choose_thread();
    switch_to(caller, idle_fiber());
    running = nullptr;
    if (const auto byte = close_shared_memory(launch.shared_bytes))
        stop(fmt::format("{} asked for {} bytes of shared memory and wrote byte {}", describe_launch(),
                         launch.shared_bytes, *byte));
}

void Grid::prepare(const Launch& launch) {
    launch_ = &launch;
    gridDim = launch.grid;
    blockDim = launch.block;
    indices_.clear();
    for (unsigned z = 0; z < launch.block.z; ++z)
        for (unsigned y = 0; y < launch.block.y; ++y)
            for (unsigned x = 0; x < launch.block.x; ++x) indices_.push_back({x, y, z});
    for (unsigned w = 0; w < kWarps; ++w) {
        const std::size_t first = w * kLanes, threads = indices_.size();
        warps_[w].present = threads <= first            ? 0
                            : threads - first >= kLanes ? ~0u
                                                        : (1u << (threads - first)) - 1;
    }
    blocks_ = blocks_left_ = std::uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
    block_ = random_.below(blocks_);
    do stride_ = 1 + random_.below(blocks_);
    while (std::gcd(stride_, blocks_) != 1);
}

/// Starts the next block. Returns false if none is left.
bool Grid::start_block() {
    if (blocks_left_ == 0) return false;
    --blocks_left_;
    block_ = (block_ + stride_) % blocks_;
    const std::uint64_t row = block_ / gridDim.x;
    blockIdx = {static_cast<unsigned>(block_ % gridDim.x), static_cast<unsigned>(row % gridDim.y),
                static_cast<unsigned>(row / gridDim.y)};
    fill_shared_memory(launch_->shared_bytes);
    warps_ready_ = 0;
    for (Warp& warp : warps_) {
        if (warp.present == 0) break;
        warp.started = warp.exited = 0;
        make_ready(warp, warp.present);
    }
    warp_ = warps_.data();
    live_ = static_cast<unsigned>(indices_.size());
    return true;
}

/// The loop of every fiber: runs the chosen thread, then others on the same stack. If a thread has to wait,
/// it keeps the stack, and the loop continues after the thread has ended.
void Grid::run_threads() {
    Fiber& self = *fiber_;
    for (;;) {
        warp_->started |= bit();
        launch_->body(launch_->arguments);
        exit_thread();
        if (Fiber* const next = choose_next()) {
            idle_.push_back(&self);
            switch_to(self, *next);
        }
    }
}

/// Chooses the next thread after one has ended. Returns its fiber, or null if the thread has not started:
/// then it can start on the current stack.
Fiber* Grid::choose_next() {
    if (live_ == 0 && !start_block()) return caller_;
    if (!choose_thread()) report_deadlock();
    return (warp_->started & bit()) != 0 ? warp_->lanes[lane_].fiber : nullptr;
}

void Grid::exit_thread() {
    warp_->exited |= bit();
    for (const WarpSync& sync : warp_->syncs)
        if ((sync.mask & bit()) != 0) report_misuse("exits while lanes of its warp wait for it", sync.where);
    if (--live_ != 0 && waiting_ == live_) open_barrier();
}

/// Chooses a random thread that can run. Returns false if all remaining threads wait.
bool Grid::choose_thread() {
    if (warps_ready_ == 0) return false;
    const std::uint64_t draw = random_.next();
    // Usually a lane of the same warp, because the stacks of one warp fit into a cache.
    if (warp_->ready == 0 || (draw & 7) == 0) warp_ = &warps_[random_bit(warps_ready_, draw >> 8)];
    lane_ = random_bit(warp_->ready, draw >> 16);
    warp_->ready &= ~bit();
    if (warp_->ready == 0) warps_ready_ &= ~(1u << index(*warp_));
    threadIdx = indices_[index(*warp_) * kLanes + lane_];
    return true;
}

void Grid::suspend() {
    Fiber& self = *fiber_;
    warp_->lanes[lane_].fiber = &self;
    if (!choose_thread()) report_deadlock();
    Fiber& next = (warp_->started & bit()) != 0 ? *warp_->lanes[lane_].fiber : idle_fiber();
    if (&next != &self) switch_to(self, next);
}

Fiber& Grid::idle_fiber() {
    if (idle_.empty()) {
        fibers_.push_back(std::make_unique<Fiber>([](void* grid) { static_cast<Grid*>(grid)->run_threads(); },
                                                  this, fibers_.size()));
        return *fibers_.back();
    }
    Fiber& fiber = *idle_.back();
    idle_.pop_back();
    return fiber;
}

void Grid::switch_to(Fiber& from, Fiber& to) {
    fiber_ = &to;
    Fiber::switch_to(from, to);
}

void Grid::make_ready(Warp& warp, std::uint32_t lanes) {
    warp.ready |= lanes;
    if (warp.ready != 0) warps_ready_ |= 1u << index(warp);
}

}  // namespace hosted
