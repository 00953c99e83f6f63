#include "train/cost_learning.hpp"

#include <fmt/format.h>

namespace maestro::train {

namespace {
constexpr double kMemory = 0.95;  // weight of the last step's task times in those of the next
}

CostLearning::CostLearning(const Job& job)
    : job_(job),
      on_(job.launch().deck.schedule.costs == "measured"),
      learned_(job.launch().deck.sections.size(), kMemory),
      planning_(learned_) {}

void CostLearning::step_done(const schedule::StepPlan& plan, const StepSums& sums) {
    if (!on_) return;
    learned_.next_step();
    for (std::size_t s = 0; s < plan.batches.size(); ++s) {
        for (const auto& replica : plan.batches[s])
            for (const auto& batch : replica)
                for (const std::int64_t id : batch.samples) learned_.said(s, job_.costs().of(id).sections[s]);
        for (std::size_t phase = 0; phase < 2; ++phase)
            learned_.took(s, phase, sums.task_s(s, phase) / job_.launch().deck.time_scale());
    }
}

void CostLearning::correct(schedule::SampleCost& cost) const {
    if (on_) planning_.apply(cost);
}

std::vector<std::string> CostLearning::describe() const {
    std::vector<std::string> lines;
    const auto& sections = job_.launch().deck.graph.sections;
    for (std::size_t s = 0; on_ && s < sections.size(); ++s) {
        const auto [forward, backward] = learned_.factors(s);
        lines.push_back(
            fmt::format("section {} takes {:.3g} times the cost model's time forward, {:.3g} backward",
                        sections[s].name, forward, backward));
    }
    return lines;
}

}  // namespace maestro::train
