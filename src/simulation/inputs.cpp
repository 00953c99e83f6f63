#include "simulation/inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "simulation/replay.hpp"
#include "workload/cost_model.hpp"
#include "workload/costs.hpp"
#include "workload/data_order.hpp"
#include "workload/mixing.hpp"
#include "workload/models.hpp"
#include "workload/sample_table.hpp"
#include "workload/stages.hpp"

namespace maestro::simulation {

namespace {

/// What a step is estimated from.
struct Facts {
    workload::Scenario scenario;
    workload::SampleTable table;
    workload::Probes probes = {};
};

Facts facts_of(workload::Scenario scenario, const data::Samples& samples) {
    scenario.markers = samples.markers();
    workload::check_samples(scenario, samples);
    workload::SampleTable table = workload::table_of(scenario, samples);
    workload::check_lengths(scenario, table, samples.name());
    workload::balance_stages(scenario, table);
    return {.scenario = std::move(scenario), .table = std::move(table)};
}

}  // namespace

Inputs inputs_of(workload::Scenario of_deck, const data::Samples& samples, const Source& source) {
    const auto facts = std::make_shared<Facts>(facts_of(std::move(of_deck), samples));
    const workload::Scenario& scenario = facts->scenario;
    const workload::SampleTable& table = facts->table;
    workload::Probes& probes = facts->probes;
    const graph::SectionGraph& graph = scenario.graph;
    workload::DataOrder order(scenario.seed, table.size(), scenario.global_batch);
    Inputs inputs;
    inputs.step = std::max<std::int64_t>(source.step, 1);
    std::optional<Replay> replay;
    if (!source.replay.empty()) {
        replay = read_replay(source.replay, source.step, graph);
        inputs.step = replay->step;
        inputs.measured_s = replay->tasks_s;
        inputs.rest_s = replay->rest_s;
    }
    const std::span<const std::int64_t> batch = order.batch(inputs.step - 1);
    const std::vector<std::int64_t> ids(batch.begin(), batch.end());
    if (scenario.cluster) {
        static_cast<workload::StepEstimate&>(inputs) =
            workload::estimate(scenario, table, probes, source.device, source.plan, ids);
        inputs.device_memory = source.device.memory;
        if (!replay)
            inputs.batch_times = [facts](schedule::Problem problem, const schedule::StepPlan& plan) {
                return workload::with_mixed_batches(std::move(problem), plan, facts->scenario, facts->table,
                                                    facts->probes);
            };
    } else {
        inputs.problem = workload::problem_of(scenario);
    }
    if (replay) {  // sums and gathers are in the rest of its step
        inputs.ends.clear();
        for (std::size_t s = 0; s < inputs.problem.stages.size(); ++s) {
            schedule::StageShape& stage = inputs.problem.stages[s];
            stage.sum_s = stage.gather_s = 0;
            if (stage.window == 0 && s < replay->windows.size()) stage.window = replay->windows[s];
        }
    }
    if (replay || !scenario.cluster) {
        std::vector<schedule::SampleCost> costs = workload::sample_costs(scenario, table, probes), of_step;
        if (replay) replace_times(costs, *replay, ids, graph);
        for (const std::int64_t id : ids) of_step.push_back(costs[id]);
        inputs.tokens = workload::add_samples(inputs.problem, table, ids, std::move(of_step));
    }
    inputs.counts = workload::step_counts(scenario, table, probes, ids);
    return inputs;
}

}  // namespace maestro::simulation
