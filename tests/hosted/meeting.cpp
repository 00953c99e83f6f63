// Where the threads of a block wait for each other: barriers and exchanges, and what is said of those that
// never end.
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
        refuse(fmt::format("is at another __syncthreads than others of its block, which are at {}",
                           hosted::describe(barrier_)),
               where);
    ++waiting_;
    warp_->at_barrier |= bit();
    if (waiting_ == live_) {
        open_barrier();
        let_on(*warp_, bit());
    }
    wait();
}

void Grid::open_barrier() {
    waiting_ = 0;
    for (Warp& warp : warps_) {
        let_on(warp, warp.at_barrier);
        warp.at_barrier = 0;
    }
}

std::uint64_t Grid::exchange(Exchange kind, unsigned mask, std::uint64_t value, unsigned source,
                             const std::source_location& where) {
    Warp& warp = *warp_;
    Lane& self = warp.lanes[lane_];
    if ((mask & bit()) == 0) refuse(fmt::format("is not in its own mask {:#x}", mask), where);
    if (const unsigned gone = mask & (warp.exited | ~warp.present))
        refuse(fmt::format("waits for lane {} of mask {:#x}, which {}", std::countr_zero(gone), mask,
                           (gone & warp.exited) != 0 ? "has exited" : "the block does not have"),
               where);
    self.value = value;
    self.source = source;
    auto meeting = std::find_if(warp.meetings.begin(), warp.meetings.end(),
                                [&](const Meeting& m) { return m.mask == mask; });
    if (meeting == warp.meetings.end())
        meeting = warp.meetings.insert(meeting, {kind, mask, 0, where});
    else if (meeting->kind != kind || (kind != Exchange::sync && !same(meeting->where, where)))
        refuse(fmt::format("is at a {} while lanes of its mask {:#x} are at a {} ({})", name(kind), mask,
                           name(meeting->kind), hosted::describe(meeting->where)),
               where);
    meeting->arrived |= bit();
    if (meeting->arrived != mask) {
        wait();
        return self.result;
    }
    const Meeting complete_one = *meeting;
    warp.meetings.erase(meeting);
    complete(complete_one);
    let_on(warp, mask & ~bit());
    return self.result;
}

/// The last lane works out what each gets: by the time that another runs, its neighbours may have gone on to
/// the next.
void Grid::complete(const Meeting& meeting) {
    Warp& warp = *warp_;
    std::uint64_t votes = 0;
    for (unsigned left = meeting.mask; left != 0; left &= left - 1) {
        const unsigned at = static_cast<unsigned>(std::countr_zero(left));
        Lane& lane = warp.lanes[at];
        if (meeting.kind == Exchange::shuffle) {
            if ((meeting.mask >> lane.source & 1) == 0)
                stop(fmt::format("{}: {} reads lane {} in a shuffle of mask {:#x} ({})", describe_block(),
                                 describe(warp, at), lane.source, meeting.mask,
                                 hosted::describe(meeting.where)));
            lane.result = warp.lanes[lane.source].value;
        }
        votes |= (lane.value & 1) << at;
    }
    if (meeting.kind != Exchange::ballot) return;
    for (unsigned left = meeting.mask; left != 0; left &= left - 1)
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

void Grid::refuse(const std::string& what, const std::source_location& where) const {
    stop(fmt::format("{}: {} {} ({}, {})", describe_block(), describe(*warp_, lane_), what,
                     hosted::describe(where), where.function_name()));
}

void Grid::stuck() const {
    std::string waits;
    if (waiting_ != 0)
        waits += fmt::format("\n  {} of {} live threads at __syncthreads ({}, {})", waiting_, live_,
                             hosted::describe(barrier_), barrier_.function_name());
    for (const Warp& warp : warps_) {
        if (warp.at_barrier != 0)
            waits += fmt::format("\n  {} first of its warp at the barrier",
                                 describe(warp, static_cast<unsigned>(std::countr_zero(warp.at_barrier))));
        for (const Meeting& meeting : warp.meetings)
            waits += fmt::format("\n  {} at a {} of mask {:#x}, of which {:#x} are there ({}, {})",
                                 describe(warp, static_cast<unsigned>(std::countr_zero(meeting.arrived))),
                                 name(meeting.kind), meeting.mask, meeting.arrived,
                                 hosted::describe(meeting.where), meeting.where.function_name());
    }
    stop(fmt::format("{}: threads wait for each other without end{}", describe_block(), waits));
}

}  // namespace hosted
