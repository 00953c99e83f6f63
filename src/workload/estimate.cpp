#include "workload/estimate.hpp"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>

#include "workload/cost_model.hpp"
#include "workload/costs.hpp"
#include "workload/step_tail.hpp"

namespace maestro::workload {

namespace {

StepTail tail_of(const schedule::Timeline& timeline, const graph::SectionGraph& graph,
                 const std::vector<StepEnd>& ends, double latency_s) {
    std::vector<double> tasks_end_s(static_cast<std::size_t>(graph.lanes), 0.0);
    std::vector<std::vector<LastBackward>> last;
    for (int s = 0; s < static_cast<int>(graph.stages.size()); ++s)
        last.emplace_back(static_cast<std::size_t>(graph.section_of(s).replica_groups()));
    for (const schedule::TimedTask& t : timeline.tasks) {
        tasks_end_s[t.lane] = std::max(tasks_end_s[t.lane], t.end_s);
        if (t.task.phase != schedule::Phase::backward) continue;
        LastBackward& of_group = last[t.task.stage][t.group];
        if (t.end_s >= of_group.end_s) of_group = {t.start_s, t.end_s};
    }
    return step_tail(graph, ends, last, tasks_end_s, latency_s);
}

/// Returns the problem with first forwards of each stage and replica group that last longer by what they wait
/// for weights when they begin as in `timeline`.
schedule::Problem with_waits(schedule::Problem problem, const schedule::StepPlan& plan,
                             const schedule::Timeline& timeline, const graph::SectionGraph& graph,
                             const std::vector<StepEnd>& ends,
                             const std::vector<std::vector<double>>& weights_s) {
    std::unordered_map<std::int64_t, std::size_t> place;
    for (std::size_t i = 0; i < problem.samples.size(); ++i) place.emplace(problem.samples[i].id, i);
    const schedule::Problem undelayed = problem;
    std::set<std::pair<int, int>> seen;
    for (const schedule::TimedTask& t : timeline.tasks) {  // in the order of their start
        const int stage = t.task.stage;
        if (t.task.phase != schedule::Phase::forward || ends[stage].empty()) continue;
        if (!seen.emplace(stage, t.group).second) continue;
        const schedule::MicroBatch& batch =
            plan.batches[graph.stages[stage].section][t.group][t.task.micro_batch];
        // All parts of a lane wait, and the longest of them ends the task.
        for (int part = 0; part < batch.parts(); ++part) {
            const std::span<const std::int64_t> samples = batch.of_part(part);
            if (samples.empty()) continue;
            double forward_s = 0;
            for (const std::int64_t id : samples)
                forward_s += undelayed.samples[place.at(id)].stages[stage].forward_s;
            problem.samples[place.at(samples.front())].stages[stage].forward_s +=
                wait_for_weights(ends[stage], weights_s[stage], t.start_s, forward_s);
        }
    }
    return problem;
}

}  // namespace

double add_samples(schedule::Problem& problem, const SampleTable& table, std::span<const std::int64_t> ids,
                   std::vector<schedule::SampleCost> costs) {
    double tokens = 0;
    for (const std::int64_t id : ids)
        for (const schedule::StageShape& stage : problem.stages)
            if (stage.loss) tokens += static_cast<double>(table.length(id, stage.section));
    problem.samples = std::move(costs);
    return tokens;
}

StepEstimate estimate(const Scenario& scenario, const SampleTable& table, Probes& probes,
                      const RankDevice& device, const PlanOptions& options,
                      std::span<const std::int64_t> ids) {
    StepEstimate step;
    step.latency_s = link_among(*scenario.cluster, 0, scenario.graph.world - 1).latency_s;
    step.problem = problem_of(scenario);
    const CostModel model(scenario, table, probes, {.samples = ids});
    std::vector<schedule::SampleCost> costs;
    for (const std::int64_t id : ids) costs.push_back(model.of(id));
    step.tokens = add_samples(step.problem, table, ids, std::move(costs));
    step.memory = plan_memory(scenario, table, probes, device, options);
    step.shortage = shortage(step.memory, scenario.graph, device);
    for (std::size_t s = 0; s < step.problem.stages.size(); ++s)
        step.problem.stages[s].window = step.memory.stages[s].window;
    step.ends = step_ends(scenario, probes);
    add_syncs(step.ends, step.problem);
    place_groups(step.ends, scenario, table, ids, probes);
    return step;
}

double step_seconds(const schedule::Timeline& timeline, const graph::SectionGraph& graph,
                    const std::vector<StepEnd>& ends, double latency_s) {
    return tail_of(timeline, graph, ends, latency_s).end_s;
}

double running_step_seconds(const schedule::Problem& problem, const schedule::StepPlan& plan,
                            schedule::Timeline timeline, const graph::SectionGraph& graph,
                            const std::vector<StepEnd>& ends, double latency_s, schedule::Dispatch dispatch) {
    // Gathers of the step before delay the first tasks. These delays are part of the costs of samples here,
    // and a task that begins later waits less: a few rounds agree.
    constexpr int kRounds = 4;
    const StepTail tail = tail_of(timeline, graph, ends, latency_s);
    for (int round = 0; round < kRounds; ++round) {
        const schedule::Problem delayed = with_waits(problem, plan, timeline, graph, ends, tail.weights_s);
        timeline = schedule::simulate(delayed, plan, dispatch);
    }
    return tail_of(timeline, graph, ends, latency_s).end_s;
}

}  // namespace maestro::workload
