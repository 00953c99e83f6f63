#include "workload/estimate.hpp"

#include <algorithm>
#include <optional>
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

/// How much longer the first forward of a sample lasts on a stage that waits for its weights.
struct Wait {
    std::size_t sample = 0;  ///< by place in the problem
    int stage = 0;
    double seconds = 0;
    bool operator==(const Wait&) const = default;
};
/// Returns what the first forwards of each stage and replica group wait for weights when they begin as in
/// `timeline`. `place`: of each sample in the problem, by id.
std::vector<Wait> waits_of(const schedule::Problem& problem,
                           const std::unordered_map<std::int64_t, std::size_t>& place,
                           const schedule::StepPlan& plan, const schedule::Timeline& timeline,
                           const graph::SectionGraph& graph, const std::vector<StepEnd>& ends,
                           const std::vector<std::vector<double>>& weights_s) {
    std::vector<Wait> waits;
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
                forward_s += problem.samples[place.at(id)].stages[stage].forward_s;
            const double wait_s = wait_for_weights(ends[stage], weights_s[stage], t.start_s, forward_s);
            if (wait_s > 0) waits.push_back({place.at(samples.front()), stage, wait_s});
        }
    }
    return waits;
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
    return Estimates(table, probes).of(scenario, device, options, ids);
}

std::size_t Estimates::Hash::operator()(const Key& key) const {
    const graph::Layout& l = key.section.layout;
    std::size_t hash = key.ids.empty() ? 0 : std::hash<std::int64_t>{}(key.ids.front());
    for (const int value : {key.index, l.dp, l.tp, l.cp, l.pp, l.ep, l.etp, static_cast<int>(l.cp_kind),
                            l.chunks, key.section.micro_batch, key.section.first_rank,
                            key.section.lane_replicas, static_cast<int>(key.recompute), key.recompute_layers})
        hash ^= std::hash<int>{}(value) + 0x9e3779b97f4a7c15 + (hash << 6) + (hash >> 2);
    return hash;
}

Estimates::Key Estimates::key_of(const Scenario& scenario, int section) {
    const graph::Section& s = scenario.graph.sections[section];
    const auto first = scenario.layers.begin() + s.first_stage;
    Key key{.index = section,
            .section = s,
            .layers = {first, first + s.layout.stage_count()},
            .recompute = scenario.tuning[section].recompute,
            .recompute_layers = scenario.tuning[section].recompute_layers};
    key.section.colocate_with.clear();
    key.section.layout.first_rank = -1;
    key.section.first_rank %= std::max(scenario.graph.ranks_per_node, 1);
    key.section.first_lane = key.section.first_stage = 0;
    return key;
}

const Estimates::Part& Estimates::part_of(const Scenario& scenario, int section,
                                          std::span<const std::int64_t> ids) {
    constexpr std::size_t kMostCosts = 1 << 22;  // that are kept, of 40 bytes each
    Key key = key_of(scenario, section);
    key.ids.assign(ids.begin(), ids.end());
    const auto known = parts_.find(key);
    if (known != parts_.end()) return known->second;
    if (costs_ > kMostCosts) {
        parts_.clear();
        costs_ = 0;
    }
    Part part;
    const CostModel model(scenario, table_, probes_,
                          {.section = section, .transfers = false, .samples = ids});
    for (const std::int64_t id : ids) {
        const schedule::SampleCost cost = model.of(id);
        part.costs.insert(part.costs.end(), cost.stages.begin(), cost.stages.end());
    }
    for (int k = 0; k < scenario.graph.sections[section].layout.stage_count(); ++k) {
        const int stage = scenario.graph.stage_of(section, k);
        part.lacking.push_back(model.lacking(stage));
        part.ends.push_back(step_end_of(scenario, stage, probes_));
        place_groups(part.ends.back(), scenario, stage, table_, ids, probes_);
    }
    costs_ += part.costs.size();
    return parts_.emplace(std::move(key), std::move(part)).first->second;
}

const std::vector<StageMemory>& Estimates::stages_of(const Scenario& scenario, int section,
                                                     backend::Traits traits, bool train) {
    Key key = key_of(scenario, section);
    key.traits = traits;
    key.train = train;
    const auto known = stages_.find(key);
    if (known != stages_.end()) return known->second;
    std::vector<StageMemory> stages;
    for (int k = 0; k < scenario.graph.sections[section].layout.stage_count(); ++k)
        stages.push_back(
            measure_stage(scenario, scenario.graph.stage_of(section, k), table_, probes_, traits, train));
    return stages_.emplace(std::move(key), std::move(stages)).first->second;
}

MemoryPlan Estimates::memory_of(const Scenario& scenario, const RankDevice& device,
                                const PlanOptions& options) {
    std::vector<StageMemory> stages;
    for (int s = 0; s < static_cast<int>(scenario.graph.sections.size()); ++s) {
        const std::vector<StageMemory>& of_section = stages_of(scenario, s, device.traits, options.train);
        stages.insert(stages.end(), of_section.begin(), of_section.end());
    }
    return plan_memory(join_stages(scenario, table_, device.traits, std::move(stages)), scenario.graph,
                       device, options);
}

StepEstimate Estimates::of(const Scenario& scenario, const RankDevice& device, const PlanOptions& options,
                           std::span<const std::int64_t> ids) {
    StepEstimate step = of(scenario, memory_of(scenario, device, options), ids);
    step.shortage = shortage(step.memory, scenario.graph, device);
    return step;
}

StepEstimate Estimates::of(const Scenario& scenario, MemoryPlan memory, std::span<const std::int64_t> ids) {
    const graph::SectionGraph& graph = scenario.graph;
    StepEstimate step;
    step.latency_s = link_among(*scenario.cluster, 0, graph.world - 1).latency_s;
    step.problem = problem_of(scenario);
    std::vector<schedule::SampleCost> costs;
    for (const std::int64_t id : ids) {
        costs.push_back({.id = id, .stages = {}});
        costs.back().stages.reserve(graph.stages.size());
    }
    for (int s = 0; s < static_cast<int>(graph.sections.size()); ++s) {
        const Part& part = part_of(scenario, s, ids);
        const auto stages = static_cast<std::ptrdiff_t>(part.ends.size());
        for (std::size_t i = 0; i < ids.size(); ++i) {
            const auto first = part.costs.begin() + static_cast<std::ptrdiff_t>(i) * stages;
            costs[i].stages.insert(costs[i].stages.end(), first, first + stages);
        }
        for (std::size_t k = 0; k < part.lacking.size(); ++k)
            step.problem.stages[step.ends.size() + k].set_lacking(part.lacking[k]);
        step.ends.insert(step.ends.end(), part.ends.begin(), part.ends.end());
    }
    for (int stage = 0; stage < static_cast<int>(graph.stages.size()); ++stage)
        if (const Transfer transfer = transfer_of(scenario, stage, table_); transfer.bandwidth > 0)
            for (schedule::SampleCost& cost : costs)
                cost.stages[stage].transfer_s =
                    transfer.seconds(table_.output_rows(cost.id, graph.stages[stage].section));
    step.tokens = add_samples(step.problem, table_, ids, std::move(costs));
    step.memory = std::move(memory);
    for (std::size_t s = 0; s < step.problem.stages.size(); ++s)
        step.problem.stages[s].window = step.memory.stages[s].window;
    add_syncs(step.ends, step.problem);
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
    std::unordered_map<std::int64_t, std::size_t> place;
    for (std::size_t i = 0; i < problem.samples.size(); ++i) place.emplace(problem.samples[i].id, i);
    std::optional<schedule::Problem> delayed;
    std::vector<Wait> waits;  // of which the timeline knows
    for (int round = 0; round < kRounds; ++round) {
        std::vector<Wait> now = waits_of(problem, place, plan, timeline, graph, ends, tail.weights_s);
        if (now == waits) break;
        if (!delayed) delayed = problem;
        const auto cost_of = [&](const Wait& wait) -> schedule::TaskCost& {
            return delayed->samples[wait.sample].stages[static_cast<std::size_t>(wait.stage)];
        };
        for (const Wait& wait : waits)
            cost_of(wait).forward_s =
                problem.samples[wait.sample].stages[static_cast<std::size_t>(wait.stage)].forward_s;
        for (const Wait& wait : now) cost_of(wait).forward_s += wait.seconds;
        timeline = schedule::simulate(*delayed, plan, dispatch);
        waits = std::move(now);
    }
    return tail_of(timeline, graph, ends, latency_s).end_s;
}

}  // namespace maestro::workload
