// ReadyAgenda: under dispatch = "ready", which task of its agenda a lane starts next.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "schedule/step_plan.hpp"

namespace maestro::schedule {

/// A lane starts the first task of its agenda that can start, so that it waits only when none can, with three
/// exceptions. Forwards of a section that sends to others keep their order, because a later one could occupy
/// the window that an earlier one needs. A forward of a section with a loss overtakes others only if these
/// can wait that long (Task::float_s). A loss section runs a backward right after its forward.
class ReadyAgenda {
public:
    /// `agenda` is kept by reference; `sends`: [stage], has an outgoing edge.
    ReadyAgenda(std::span<const Task> agenda, std::vector<bool> sends);

    bool done() const { return open_.empty(); }
    std::size_t left() const { return open_.size(); }
    /// Returns the index of the first task that has not started. There must be one.
    std::size_t first() const { return open_.front(); }
    /// Returns the index of the task to start now, none if the lane has to wait. `can_start(index)` returns
    /// whether the inputs of a task have arrived and its window is open.
    template <class CanStart>
    std::optional<std::size_t> next(CanStart&& can_start);
    void start(std::size_t place);

private:
    std::span<const Task> agenda_;
    std::vector<bool> sends_;
    std::vector<std::size_t> open_;  ///< indices of the tasks that have not started
    std::vector<double> waits_s_;    ///< [stage], how long the forwards that next() has passed can wait
    std::optional<std::size_t> follows_;
};

template <class CanStart>
std::optional<std::size_t> ReadyAgenda::next(CanStart&& can_start) {
    if (follows_) return follows_;
    waits_s_.assign(sends_.size(), std::numeric_limits<double>::infinity());
    for (const std::size_t place : open_) {
        const Task& task = agenda_[place];
        const int stage = task.stage;
        const bool forward = task.phase == Phase::forward;
        const bool kept_back = forward && task.takes_s > waits_s_[stage];
        if (!kept_back && can_start(place)) return place;
        if (forward) waits_s_[stage] = sends_[stage] ? -1.0 : std::min(waits_s_[stage], task.float_s);
    }
    return std::nullopt;
}

}  // namespace maestro::schedule
