// Paths of a sample's tasks through the stages, on which the lower bounds rest: when a stage can have the
// sample at the earliest, how long it takes from there to the end of the step, and how long the sample is in
// flight.
#pragma once

#include <optional>
#include <vector>

#include "schedule/problem/problem.hpp"

namespace maestro::schedule {

/// Returns whether the sample's backward upstream waits for its backward downstream.
bool returns(const Problem& problem, const SampleCost& sample, const EdgeShape& e);

/// Returns the seconds of both of the sample's tasks in a stage.
double total(const Problem& problem, const SampleCost& sample, std::size_t stage);

class SamplePaths {
public:
    /// Takes time proportional to samples times edges. `problem` is kept by reference.
    explicit SamplePaths(const Problem& problem);

    const Problem& problem() const { return problem_; }
    /// Returns the longest path from a source to the start of the stage, seconds: the release time there.
    double head(std::size_t sample, std::size_t stage) const { return head_[sample * stages_ + stage]; }
    /// Returns the longest path from the end of the stage's backward to the end of the step: the delivery
    /// time.
    double tail(std::size_t sample, std::size_t stage) const { return tail_[sample * stages_ + stage]; }
    /// Returns what the forward and the backward of a stage take at least besides any one of their samples:
    /// the other places of the micro-batch have samples, or lack them. Seconds.
    double besides(std::size_t stage) const { return besides_[stage].forward_s + besides_[stage].backward_s; }
    /// Returns the seconds of a sample's forwards in the stages from `from` up to `to` of the same section,
    /// without that of `to`.
    double inner_head(std::size_t sample, std::size_t from, std::size_t to) const;
    /// Returns the same of its backwards, none if one of these stages has none: then `from` does not wait for
    /// `to`.
    std::optional<double> inner_tail(std::size_t sample, std::size_t from, std::size_t to) const;
    /// Returns for each stage a lower bound of the time that its micro-batches are in flight, from the start
    /// of their forward to when they leave the window, summed over the micro-batches, seconds.
    std::vector<double> in_flight() const;

private:
    /// Returns the seconds of each sample's tasks on the lane that works longest, of those that run this
    /// stage and those after it in its section.
    std::vector<double> work_on_fullest_lane(std::size_t stage) const;
    /// Returns by edge and sample what the sample adds to the time for which its micro-batch waits at least
    /// for the groups of another section that it feeds: of the edges from a stage, for the one with most
    /// work. Empty for all others.
    std::vector<std::vector<double>> downstream_work() const;
    /// Returns in_flight() with waits for other sections by `work`, or by the mean chain where it is empty.
    std::vector<double> in_flight(const std::vector<std::vector<double>>& work) const;

    const Problem& problem_;
    std::size_t stages_;
    std::vector<EdgeShape> edges_;     ///< those that enter a stage come before those that leave it
    std::vector<TaskCost> besides_;    ///< [stage]
    std::vector<double> head_, tail_;  ///< [sample * stages + stage]
};

}  // namespace maestro::schedule
