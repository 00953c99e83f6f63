// ReadyAgenda: under dispatch = "ready", which task of its agenda a lane starts next.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "schedule/problem/step_plan.hpp"

namespace maestro::schedule {

/// What a lane has to know of a stage.
struct LaneStage {
    int section = 0;
    bool sends = false;  ///< it has an outgoing edge; otherwise it computes a loss
};

/// A lane starts the first task of its agenda that can start, so that it waits only when none can, with four
/// exceptions. Forwards of a stage that sends to others keep their order, because a later one could occupy
/// the window that an earlier one needs. A forward of a stage with a loss overtakes others only if these
/// can wait that long (Task::float_s). A stage with a loss runs a backward right after its forward. Where a
/// section has several stages on the lane, its chunks, their tasks overtake none of the section: they were
/// interleaved so that no rank of the pipeline waits. Only the forwards of its stage with a loss may.
class ReadyAgenda {
public:
    /// `agenda` is kept by reference; `stages`: [stage], at least of those in the agenda.
    ReadyAgenda(std::span<const Task> agenda, std::vector<LaneStage> stages);

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
    std::vector<LaneStage> stages_;
    std::vector<std::size_t> open_;  ///< indices of the tasks that have not started
    std::vector<double> waits_s_;    ///< [stage], how long the forwards that next() has passed can wait
    std::vector<char> interleaved_;  ///< [section], has several stages on the lane
    std::vector<char> passed_;       ///< [section], next() has passed a task of it
    std::optional<std::size_t> follows_;
};

template <class CanStart>
std::optional<std::size_t> ReadyAgenda::next(CanStart&& can_start) {
    if (follows_) return follows_;
    waits_s_.assign(stages_.size(), std::numeric_limits<double>::infinity());
    passed_.assign(interleaved_.size(), 0);
    for (const std::size_t place : open_) {
        const Task& task = agenda_[place];
        const int stage = task.stage;
        const bool forward = task.phase == Phase::forward;
        const auto [section, sends] = stages_[stage];
        const bool in_turn = !interleaved_[section] || !passed_[section] || (forward && !sends);
        const bool kept_back = forward && task.takes_s > waits_s_[stage];
        if (in_turn && !kept_back && can_start(place)) return place;
        if (forward) waits_s_[stage] = sends ? -1.0 : std::min(waits_s_[stage], task.float_s);
        passed_[section] = 1;
    }
    return std::nullopt;
}

}  // namespace maestro::schedule
