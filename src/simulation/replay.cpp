#include "simulation/replay.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "base/error.hpp"
#include "recorded/rows.hpp"

namespace maestro::simulation {

namespace {

[[noreturn]] void refuse(const std::string& what) {
    throw Error(ExitCode::bad_data, what, Scope::all_ranks);
}

/// A micro-batch in a stage while its rows are read, by stage, replica and number.
struct Batch {
    Replay::Measured times;
    int runs[2] = {0, 0};  ///< forwards and backwards
};
using Batches = std::map<std::tuple<int, int, int>, Batch>;

/// Returns `step`, or the last one if that is 0, of the steps that are recorded completely.
std::int64_t recorded_step(const io::Rows& rows, const std::string& run, std::int64_t step) {
    std::set<std::int64_t> recorded, whole;
    for (const io::AssignmentRow& a : rows.assignment) recorded.insert(a.step);
    for (const io::StepRow& s : rows.steps)
        if (recorded.contains(s.step)) whole.insert(s.step);
    if (whole.empty())
        refuse(
            fmt::format("--replay {}: no step's tasks are recorded there with their samples; train with "
                        "metrics.timeline_every of 1 or more",
                        run));
    if (step > 0 && !whole.contains(step))
        refuse(fmt::format("--replay {}: step {} is not recorded; {} are, from {} to {}", run, step,
                           whole.size(), *whole.begin(), *whole.rbegin()));
    return step > 0 ? step : *whole.rbegin();
}

Batches batches_of(const io::Rows& rows, std::int64_t step, const graph::SectionGraph& graph) {
    Batches found;
    for (const io::AssignmentRow& a : rows.assignment)
        if (a.step == step)
            for (int stage = graph.sections[a.section].first_stage; stage <= graph.last_stage(a.section);
                 ++stage)
                found[{stage, a.replica, a.micro_batch}].times.samples.push_back(a.sample);
    return found;
}

/// Every micro-batch ran forward once, and backward once where the section has a backward.
void check_whole(const Batches& found, const Replay& replay, const graph::SectionGraph& graph) {
    for (int s = 0; s < static_cast<int>(graph.stages.size()); ++s) {
        int batches = 0, forwards = 0, backwards = 0;
        bool twice = false;
        for (const auto& [key, batch] : found) {
            if (std::get<0>(key) != s) continue;
            ++batches;
            forwards += batch.runs[0];
            backwards += batch.runs[1];
            twice = twice || batch.runs[0] > 1 || batch.runs[1] > 1;
        }
        if (twice || forwards != batches || (backwards != 0 && backwards != batches))
            refuse(fmt::format("--replay {}: /timeline lacks tasks of step {}", replay.run, replay.step));
        if (graph.section_of(s).backward && backwards < batches)
            refuse(fmt::format("--replay {}: section {} ran no backward there, the deck's does", replay.run,
                               graph.stage_name(s)));
    }
}

/// Whether the sections ran in as many stages in a step as the deck's have: a run may be resumed in others.
bool ran_in_stages(const io::Rows& rows, std::int64_t step, const graph::SectionGraph& graph) {
    std::vector<int> stages(graph.sections.size(), 0);
    for (const io::TaskRow& t : rows.tasks)
        if (t.step == step) stages[t.section] = std::max(stages[t.section], t.stage + 1);
    for (std::size_t s = 0; s < stages.size(); ++s)
        if (stages[s] != 0 && stages[s] != graph.sections[s].layout.stage_count()) return false;
    return true;
}

}  // namespace

Replay read_replay(const std::string& run, std::int64_t step, const graph::SectionGraph& graph) {
    const io::Rows rows = recorded::read_rows(run, "--replay", graph);
    Replay replay{.run = run, .step = recorded_step(rows, run, step), .stages = {}};
    if (!ran_in_stages(rows, replay.step, graph))
        refuse(
            fmt::format("--replay {}: step {} ran in other stages than the deck's; layout.pp and "
                        "layout.chunks must be the run's",
                        run, replay.step));
    auto found = batches_of(rows, replay.step, graph);
    double first = 1e300, last = 0;
    for (const io::TaskRow& t : rows.tasks) {
        if (t.step != replay.step) continue;
        const auto at = found.find({graph.stage_of(t.section, t.stage), t.replica, t.micro_batch});
        if (at == found.end())
            refuse(fmt::format("--replay {}: a task of step {} holds no samples", run, t.step));
        at->second.times.seconds[t.phase] += t.work_s();
        ++at->second.runs[t.phase];
        first = std::min(first, t.start_s);
        last = std::max(last, t.end_s);
    }
    check_whole(found, replay, graph);
    replay.tasks_s = std::max(last - first, 0.0);
    for (const io::StepRow& s : rows.steps)
        if (s.step == replay.step) replay.rest_s = std::max(s.time_s - replay.tasks_s, 0.0);
    replay.windows = io::read_windows(run + "/metrics.h5");
    if (!replay.windows.empty() && (replay.windows.size() != graph.stages.size() ||
                                    std::any_of(replay.windows.begin(), replay.windows.end(),
                                                [](int w) { return w < 1 || w > graph::kMaxInFlight; })))
        refuse(fmt::format("--replay {}: metrics.h5 does not hold a window for each section and stage", run));
    replay.stages.resize(graph.stages.size());
    for (auto& [key, batch] : found) replay.stages[std::get<0>(key)].push_back(std::move(batch.times));
    return replay;
}

void replace_times(std::vector<schedule::SampleCost>& costs, const Replay& replay,
                   std::span<const std::int64_t> batch, const graph::SectionGraph& graph) {
    for (std::size_t s = 0; s < replay.stages.size(); ++s) {
        std::set<std::int64_t> due;
        for (const std::int64_t id : batch)
            if (costs[id].stages[s].active) due.insert(id);
        for (const Replay::Measured& micro : replay.stages[s]) {
            double sums[2] = {0, 0};
            for (const std::int64_t id : micro.samples) {
                if (due.erase(id) == 0)
                    refuse(
                        fmt::format("--replay {}: section {} worked on sample {} in step {}, the deck does "
                                    "not; samples, data.global_batch and run.seed must be the run's",
                                    replay.run, graph.stage_name(static_cast<int>(s)), id, replay.step));
                const schedule::TaskCost& cost = costs[id].stages[s];
                sums[0] += cost.forward_s;
                sums[1] += cost.backward_s;
            }
            for (const std::int64_t id : micro.samples) {
                schedule::TaskCost& cost = costs[id].stages[s];
                const auto share = [&](double seconds, double sum) {
                    return sum > 0 ? seconds / sum : 1 / static_cast<double>(micro.samples.size());
                };
                cost.forward_s = micro.seconds[0] * share(cost.forward_s, sums[0]);
                cost.backward_s = micro.seconds[1] * share(cost.backward_s, sums[1]);
            }
        }
        if (!due.empty())
            refuse(
                fmt::format("--replay {}: section {} did not work on sample {} in step {}, the deck does; "
                            "samples, data.global_batch and run.seed must be the run's",
                            replay.run, graph.stage_name(static_cast<int>(s)), *due.begin(), replay.step));
    }
}

}  // namespace maestro::simulation
