#include "train/coordinator/cost_learning.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace maestro::train {

namespace {
/// Weight of a step's task times, from one step to the next. The last 20 steps make up two thirds of the
/// ratio: enough to average noise, few enough to follow a machine that becomes slower.
constexpr double kDecay = 0.95;
}  // namespace

CostLearning::CostLearning(bool enabled, const graph::SectionGraph& graph, double time_scale)
    : enabled_(enabled),
      graph_(graph),
      time_scale_(time_scale),
      learned_(graph.stages.size(), kDecay),
      planning_(learned_) {}

void CostLearning::step_done(const schedule::StepPlan& plan, const StepSums& sums,
                             const workload::CostModel& costs) {
    if (!enabled_) return;
    // What is compared are sums over all samples of a step: tasks of several samples have one time.
    learned_.next_step();
    for (std::size_t s = 0; s < plan.batches.size(); ++s)
        for (const auto& group : plan.batches[s])
            for (const auto& batch : group) add_predicted(static_cast<int>(s), batch, costs);
    for (std::size_t stage = 0; stage < graph_.stages.size(); ++stage)
        for (std::size_t phase = 0; phase < 2; ++phase)
            learned_.add_measured(stage, phase, sums.task_s(stage, phase) / time_scale_);
}

void CostLearning::add_predicted(int section, const schedule::MicroBatch& batch,
                                 const workload::CostModel& costs) {
    const int first = graph_.stage_of(section, 0), last = graph_.last_stage(section);
    for (const std::int64_t id : batch.samples) {
        const schedule::SampleCost cost = costs.of(id);
        for (int stage = first; stage <= last; ++stage) learned_.add_predicted(stage, cost.stages[stage]);
    }
    const int lacking = graph_.sections[section].lane_micro_batch() - static_cast<int>(batch.samples.size());
    for (int stage = first; stage <= last; ++stage) {
        schedule::TaskCost cost = costs.lacking(stage);
        cost.forward_s *= std::max(0, lacking);
        cost.backward_s *= std::max(0, lacking);
        learned_.add_predicted(stage, cost);
    }
}

void CostLearning::correct(schedule::Problem& problem) const {
    if (enabled_) planning_.apply(problem);
}

std::vector<std::string> CostLearning::describe() const {
    std::vector<std::string> lines;
    for (std::size_t s = 0; enabled_ && s < graph_.stages.size(); ++s) {
        const auto [forward, backward] = learned_.factors(s);
        lines.push_back(
            fmt::format("section {} takes {:.3g} times the cost model's time forward, {:.3g} backward",
                        graph_.stage_name(static_cast<int>(s)), forward, backward));
    }
    return lines;
}

}  // namespace maestro::train
