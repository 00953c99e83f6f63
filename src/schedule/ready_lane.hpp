// dispatch = "ready": which task of its lane a rank starts next.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "schedule/step_plan.hpp"

namespace maestro::schedule {

/// A rank starts the first task of its lane that can start, so that it waits only when none can. But forwards
/// of a section that sends on keep their order, lest they take the window from what others need first; a
/// forward waits for the one that it may not overtake (Task::after); and a loss section runs a backward right
/// after its forward.
class ReadyLane {
public:
    /// `lane` is kept by reference; `sends`: [section], has an outgoing edge.
    ReadyLane(std::span<const Task> lane, std::vector<bool> sends);

    bool done() const { return open_.empty(); }
    std::size_t left() const { return open_.size(); }
    /// Place of the first task that has not started; not where all have.
    std::size_t first() const { return open_.front(); }
    /// Place of the task to start now, none where the rank has to wait; `can_start(place)` says of a task
    /// whether its inputs are there and its window is open.
    template <class CanStart>
    std::optional<std::size_t> next(CanStart&& can_start);
    void start(std::size_t place);

private:
    bool kept_back(const Task& task) const;

    std::span<const Task> lane_;
    std::vector<bool> sends_;
    std::vector<std::size_t> open_;    ///< places of the tasks that have not started
    std::vector<std::size_t> passed_;  ///< of forwards that next() found unable to start
    std::optional<std::size_t> follows_;
};

template <class CanStart>
std::optional<std::size_t> ReadyLane::next(CanStart&& can_start) {
    if (follows_) return follows_;
    passed_.clear();
    for (const std::size_t place : open_) {
        const Task& task = lane_[place];
        if (!kept_back(task) && can_start(place)) return place;
        if (task.phase == Phase::forward) passed_.push_back(place);
    }
    return std::nullopt;
}

}  // namespace maestro::schedule
