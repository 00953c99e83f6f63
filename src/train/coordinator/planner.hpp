// What the coordinator does between two steps: it takes the plan of the next step, which a thread has made
// meanwhile, and learns from the task times of the last one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/waiter.hpp"
#include "config/deck.hpp"
#include "graph/section_graph.hpp"
#include "schedule/problem/problem.hpp"
#include "train/coordinator/cost_learning.hpp"
#include "train/coordinator/plan_source.hpp"

namespace maestro::train {

/// The steps to plan, counted from 1.
struct StepBatches {
    std::int64_t steps = 0;
    /// The ids of the samples of a step. Called in the planner's thread, one step at a time.
    std::function<std::vector<std::int64_t>(std::int64_t step)> samples;
};

class Planner {
public:
    /// `problem` holds the sections, edges and ranks, and no samples. `costs` is null except on the
    /// coordinator, which alone may ask for plans. The caller keeps all of them alive.
    Planner(const config::Deck& deck, const graph::SectionGraph& graph, const schedule::Problem& problem,
            const workload::CostModel* costs, StepBatches batches, comm::Waiter& waiter);
    /// Returns the plan of `step`, and begins that of the next one. Waits with the waiter's deadline where it
    /// is not ready. `began_s` (comm::now_s()) is when the step began.
    schedule::StepPlan next(std::int64_t step, double began_s);
    void step_done(const schedule::StepPlan& plan, const StepSums& sums) {
        learning_.step_done(plan, sums, *costs_);
    }
    /// Lines for the log.
    std::vector<std::string> describe() const;

private:
    schedule::Problem problem_of(std::int64_t step) const;

    const config::Deck& deck_;
    const graph::SectionGraph& graph_;
    const schedule::Problem& problem_;
    const workload::CostModel* costs_;
    StepBatches batches_;
    comm::Waiter& waiter_;
    CostLearning learning_;
    PlanTotals totals_;
    bool first_ = true;
    PlanSource plans_;  ///< the last member: its thread uses the others
};

}  // namespace maestro::train
