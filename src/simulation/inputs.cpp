#include "simulation/inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.hpp"
#include "base/log.hpp"
#include "simulation/replay.hpp"
#include "workload/correction.hpp"
#include "workload/cost_model.hpp"
#include "workload/costs.hpp"
#include "workload/data_order.hpp"
#include "workload/models.hpp"
#include "workload/sample_table.hpp"
#include "workload/stages.hpp"

namespace maestro::simulation {

namespace {

/// Scales the costs so that their sums over the steps of the run are the times of its tasks. The first steps,
/// in which memory is touched for the first time, are left out if there are enough others.
void correct(std::vector<schedule::SampleCost>& costs, const graph::SectionGraph& graph,
             workload::DataOrder& order, const std::string& run) {
    constexpr std::int64_t kWarmUp = 3;
    const io::Rows rows = read_run(run, "--measured", graph);
    const std::vector<io::TaskRow>& tasks = rows.tasks;
    workload::Correction correction(graph.stages.size());
    std::set<std::int64_t> steps = steps_in_stages(rows, graph);
    if (steps.empty() && !tasks.empty()) refuse_other_stages("--measured", run, 0);
    while (steps.size() > 2 * kWarmUp && *steps.begin() <= kWarmUp) steps.erase(steps.begin());
    for (const io::TaskRow& t : tasks)
        if (steps.contains(t.step))
            correction.add_measured(graph.stage_of(t.section, t.stage), t.phase, t.work_s());
    std::map<std::int64_t, std::set<std::int64_t>> had;  // samples by step
    for (const io::AssignmentRow& a : rows.assignment) had[a.step].insert(a.sample);
    for (const std::int64_t step : steps)
        for (const std::int64_t id : order.batch(step - 1)) {
            if (!had.empty() && !had[step].contains(id))
                throw Error(ExitCode::bad_data,
                            fmt::format("--measured {}: step {} did not have sample {}, the deck's does; "
                                        "samples, data.global_batch and run.seed must be the run's",
                                        run, step, id),
                            Scope::all_ranks);
            for (std::size_t s = 0; s < graph.stages.size(); ++s)
                correction.add_predicted(s, costs[id].stages[s]);
        }
    for (std::size_t s = 0; s < graph.stages.size(); ++s)
        log::info("{}: section {}: measured over predicted time {:.3f} forward, {:.3f} backward", run,
                  graph.stage_name(static_cast<int>(s)), correction.factors(s)[0], correction.factors(s)[1]);
    for (schedule::SampleCost& cost : costs) correction.apply(cost);
}

}  // namespace

Inputs inputs_of(workload::Scenario scenario, const std::string& path, const Source& source) {
    const data::SampleFile samples(path);
    scenario.markers = samples.markers();
    const graph::SectionGraph& graph = scenario.graph;
    workload::check_samples(scenario, samples);
    const workload::SampleTable table = workload::table_of(scenario, samples);
    workload::check_lengths(scenario, table, path);
    workload::balance_stages(scenario, table);
    workload::Probes probes;
    auto costs = workload::sample_costs(scenario, table, probes);
    workload::DataOrder order(scenario.seed, table.size(), scenario.global_batch);
    const config::Cluster* const cluster = scenario.cluster ? &*scenario.cluster : nullptr;
    Inputs inputs;
    if (cluster) inputs.latency_s = workload::link_among(*cluster, 0, graph.world - 1).latency_s;
    inputs.problem = workload::problem_of(scenario);
    inputs.step = std::max<std::int64_t>(source.step, 1);
    if (!source.measured.empty()) correct(costs, graph, order, source.measured);
    if (!source.replay.empty()) {
        const Replay replay = read_replay(source.replay, source.step, graph);
        inputs.step = replay.step;
        inputs.measured_s = replay.tasks_s;
        inputs.rest_s = replay.rest_s;
        replace_times(costs, replay, order.batch(replay.step - 1), graph);
        for (std::size_t s = 0; s < replay.windows.size(); ++s)
            if (int& window = inputs.problem.stages[s].window; window == 0) window = replay.windows[s];
    }
    if (cluster) {
        inputs.memory = workload::plan_memory(scenario, table, probes, source.device, source.plan);
        inputs.device_memory = source.device.memory;
        inputs.shortage = workload::shortage(inputs.memory, graph, source.device);
        for (std::size_t s = 0; s < inputs.problem.stages.size(); ++s)
            inputs.problem.stages[s].window = inputs.memory.stages[s].window;
        if (source.replay.empty()) {
            inputs.ends = workload::step_ends(scenario, probes);
            workload::add_syncs(inputs.ends, inputs.problem);
            workload::place_groups(inputs.ends, scenario, table, order.batch(inputs.step - 1), probes);
        }
    }
    inputs.counts = workload::step_counts(scenario, table, probes, order.batch(inputs.step - 1));
    for (const std::int64_t id : order.batch(inputs.step - 1)) {
        inputs.problem.samples.push_back(costs[id]);
        for (std::size_t s = 0; s < inputs.problem.stages.size(); ++s)
            if (inputs.problem.stages[s].loss)
                inputs.tokens += static_cast<double>(table.length(id, inputs.problem.stages[s].section));
    }
    return inputs;
}

}  // namespace maestro::simulation
