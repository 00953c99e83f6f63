#include "schedule/pipelines.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "schedule/bounds.hpp"
#include "schedule/choosers.hpp"
#include "schedule/plan_builder.hpp"

namespace maestro::schedule {

Problem without_pipelines(const Problem& problem) {
    Problem single{.stages = std::vector<StageShape>(problem.sections()),
                   .edges = {},
                   .lanes = 0,
                   .samples = {},
                   .zero_is_none = problem.zero_is_none};
    std::vector<std::pair<int, int>> lanes;  // first lane of a section here, and of its first stage there
    for (std::size_t s = 0; s < problem.stages.size(); ++s) {
        const StageShape& shape = problem.stages[s];
        const bool first = s == 0 || problem.stages[s - 1].section != shape.section;
        StageShape& made = single.stages[shape.section];
        const int first_lane = made.first_lane;
        made = shape;  // of the last stage, which has the loss
        made.lane_stride = 1;
        made.first_lane = first_lane;
        if (!first) continue;
        const auto known = std::find_if(lanes.begin(), lanes.end(),
                                        [&](const auto& pair) { return pair.second == shape.first_lane; });
        made.first_lane = known != lanes.end() ? known->first : single.lanes;
        if (known != lanes.end()) continue;
        lanes.emplace_back(single.lanes, shape.first_lane);
        single.lanes += shape.replicas;
    }
    for (EdgeShape edge : problem.edges) {
        edge.from = problem.stages[edge.from].section;
        edge.to = problem.stages[edge.to].section;
        if (edge.from != edge.to) single.edges.push_back(edge);
    }
    const std::vector<int> longest = longest_stages(problem);
    for (const SampleCost& sample : problem.samples) {
        SampleCost& cost = single.samples.emplace_back();
        cost.id = sample.id;
        for (const int s : longest) cost.stages.push_back(sample.stages[s]);
        // Rows leave a section at its last stage.
        for (std::size_t s = 0; s < problem.stages.size(); ++s)
            cost.stages[problem.stages[s].section].transfer_s = sample.stages[s].transfer_s;
    }
    return single;
}

std::optional<StepPlan> plan_pipelines(const Problem& problem, const Problem& single, const StepPlan& base) {
    const Instance instance = whole(problem);
    std::map<std::int64_t, int> place;
    for (int i = 0; i < instance.samples; ++i) place.emplace(instance.ids[i], i);
    std::vector<Batches> batches(single.stages.size());
    for (std::size_t s = 0; s < batches.size(); ++s)
        for (int r = 0; r < single.stages[s].replicas; ++r) {
            for (const Task& task : base.agendas[single.stages[s].lane(r)]) {
                if (task.stage != static_cast<int>(s) || task.phase != Phase::forward) continue;
                for (const std::int64_t id : base.batches[s][r][task.micro_batch].samples)
                    batches[s].samples.push_back(place.at(id));
                batches[s].close_batch();
            }
            batches[s].close_replica();
        }
    Machine machine(instance, batches);
    ListOrder chooser(machine);
    std::vector<Executed> executed;
    if (machine.run(chooser, &executed) == std::numeric_limits<double>::infinity()) return std::nullopt;
    PlanBuilder builder(problem, 1);
    builder.add(machine, batches, executed, 0);
    StepPlan plan = builder.finish(base.step);
    plan.window_limited = base.window_limited;
    return plan;
}

}  // namespace maestro::schedule
