// Synchronization of the threads of a block: barriers, warp exchanges, and the reports of misuse and
// deadlocks.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>

#include "grid.hpp"
#include "stop.hpp"

namespace hosted {
namespace {

bool same(const std::source_location& a, const std::source_location& b) {
    if (a.line() != b.line()) return false;
    return a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0;
}

std::string describe(const std::source_location& where) {
    return fmt::format("{}:{}", where.file_name(), where.line());
}

std::string describe(const uint3& i) {
    return fmt::format("({}, {}, {})", i.x, i.y, i.z);
}

const char* name(Exchange kind) {
    switch (kind) {
        case Exchange::shuffle:
            return "shuffle";
        case Exchange::ballot:
            return "vote";
        case Exchange::sync:
            break;
    }
    return "__syncwarp";
}

}  // namespace

void Grid::barrier(const std::source_location& where) {
    if (waiting_ == 0)
        barrier_ = where;
    else if (!same(barrier_, where))
        report_misuse(fmt::format("is at another __syncthreads than others of its block, which are at {}",
                                  hosted::describe(barrier_)),
                      where);
    ++waiting_;
    warp_->at_barrier |= bit();
    if (waiting_ == live_) {
        open_barrier();
        make_ready(*warp_, bit());
    }
    suspend();
}

void Grid::open_barrier() {
    waiting_ = 0;
    for (Warp& warp : warps_) {
        make_ready(warp, warp.at_barrier);
        warp.at_barrier = 0;
    }
}

std::uint64_t Grid::exchange(Exchange kind, unsigned mask, std::uint64_t value, unsigned source,
                             const std::source_location& where) {
    Warp& warp = *warp_;
    Lane& self = warp.lanes[lane_];
    if ((mask & bit()) == 0) report_misuse(fmt::format("is not in its own mask {:#x}", mask), where);
    if (const unsigned gone = mask & (warp.exited | ~warp.present))
        report_misuse(fmt::format("waits for lane {} of mask {:#x}, which {}", std::countr_zero(gone), mask,
                                  (gone & warp.exited) != 0 ? "has exited" : "the block does not have"),
                      where);
    self.value = value;
    self.source = source;
    auto sync =
        std::find_if(warp.syncs.begin(), warp.syncs.end(), [&](const WarpSync& m) { return m.mask == mask; });
    if (sync == warp.syncs.end())
        sync = warp.syncs.insert(sync, {kind, mask, 0, where});
    else if (sync->kind != kind || (kind != Exchange::sync && !same(sync->where, where)))
        report_misuse(fmt::format("is at a {} while lanes of its mask {:#x} are at a {} ({})", name(kind),
                                  mask, name(sync->kind), hosted::describe(sync->where)),
                      where);
    sync->arrived |= bit();
    if (sync->arrived != mask) {
        suspend();
        return self.result;
    }
    const WarpSync completed = *sync;
    warp.syncs.erase(sync);
    complete(completed);
    make_ready(warp, mask & ~bit());
    return self.result;
}

/// The last lane to arrive computes the results of all lanes. When another lane runs, its neighbours may
/// already have overwritten their values for the next exchange.
void Grid::complete(const WarpSync& sync) {
    Warp& warp = *warp_;
    std::uint64_t votes = 0;
    for (unsigned left = sync.mask; left != 0; left &= left - 1) {
        const unsigned at = static_cast<unsigned>(std::countr_zero(left));
        Lane& lane = warp.lanes[at];
        if (sync.kind == Exchange::shuffle) {
            if ((sync.mask >> lane.source & 1) == 0)
                stop(fmt::format("{}: {} reads lane {} in a shuffle of mask {:#x} ({})", describe_block(),
                                 describe(warp, at), lane.source, sync.mask, hosted::describe(sync.where)));
            lane.result = warp.lanes[lane.source].value;
        }
        votes |= (lane.value & 1) << at;
    }
    if (sync.kind != Exchange::ballot) return;
    for (unsigned left = sync.mask; left != 0; left &= left - 1)
        warp.lanes[static_cast<unsigned>(std::countr_zero(left))].result = votes;
}

std::string Grid::describe_launch() const {
    return fmt::format("launch {} ({})", launch_->number, hosted::describe(launch_->site));
}

std::string Grid::describe_block() const {
    return fmt::format("{}, block {}", describe_launch(), hosted::describe(blockIdx));
}

std::string Grid::describe(const Warp& warp, unsigned lane) const {
    return fmt::format("thread {} (lane {})", hosted::describe(indices_[index(warp) * kLanes + lane]), lane);
}

void Grid::report_misuse(const std::string& what, const std::source_location& where) const {
    stop(fmt::format("{}: {} {} ({}, {})", describe_block(), describe(*warp_, lane_), what,
                     hosted::describe(where), where.function_name()));
}

void Grid::report_deadlock() const {
    std::string waits;
    if (waiting_ != 0)
        waits += fmt::format("\n  {} of {} live threads at __syncthreads ({}, {})", waiting_, live_,
                             hosted::describe(barrier_), barrier_.function_name());
    for (const Warp& warp : warps_) {
        if (warp.at_barrier != 0)
            waits += fmt::format("\n  {} first of its warp at the barrier",
                                 describe(warp, static_cast<unsigned>(std::countr_zero(warp.at_barrier))));
        for (const WarpSync& sync : warp.syncs)
            waits += fmt::format("\n  {} at a {} of mask {:#x}, of which {:#x} are there ({}, {})",
                                 describe(warp, static_cast<unsigned>(std::countr_zero(sync.arrived))),
                                 name(sync.kind), sync.mask, sync.arrived, hosted::describe(sync.where),
                                 sync.where.function_name());
    }
    stop(fmt::format("{}: threads wait for each other without end{}", describe_block(), waits));
}

}  // namespace hosted
