#include "simulation/inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

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

Inputs inputs_of(workload::Scenario scenario, const data::Samples& samples, const Source& source) {
    scenario.markers = samples.markers();
    const graph::SectionGraph& graph = scenario.graph;
    workload::check_samples(scenario, samples);
    const workload::SampleTable table = workload::table_of(scenario, samples);
    workload::check_lengths(scenario, table, samples.name());
    workload::balance_stages(scenario, table);
    workload::Probes probes;
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
    if (replay || !scenario.cluster || !source.measured.empty()) {
        std::vector<schedule::SampleCost> costs = workload::sample_costs(scenario, table, probes), of_step;
        if (!source.measured.empty()) correct(costs, graph, order, source.measured);
        if (replay) replace_times(costs, *replay, ids, graph);
        for (const std::int64_t id : ids) of_step.push_back(costs[id]);
        inputs.tokens = workload::add_samples(inputs.problem, table, ids, std::move(of_step));
    }
    inputs.counts = workload::step_counts(scenario, table, probes, ids);
    return inputs;
}

}  // namespace maestro::simulation
