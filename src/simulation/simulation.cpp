#include "simulation/simulation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text_file.hpp"
#include "io/metrics_file.hpp"
#include "schedule/bounds.hpp"
#include "schedule/policies.hpp"
#include "simulation/costs_file.hpp"
#include "workload/costs.hpp"
#include "workload/data_order.hpp"
#include "workload/models.hpp"
#include "workload/sample_table.hpp"

namespace maestro::simulation {

namespace {

/// Seconds that the ranks of each section work on it.
std::vector<double> busy_of(const Result& result) {
    std::vector<double> busy(result.problem.sections.size(), 0.0);
    for (const auto& t : result.timeline.tasks)
        busy[static_cast<std::size_t>(t.task.section)] += t.end_s - t.start_s;
    return busy;
}

double gap_of(const Result& result) {
    return result.lower_bound_s > 0 ? result.timeline.makespan_s / result.lower_bound_s - 1 : 0;
}

int ranks_of(const Result& result, std::size_t section) {
    return result.policy == "one-size" ? result.problem.world : result.problem.sections[section].replicas;
}

/// Scales the costs, so that their sums over the steps of the run are what its tasks took. The first steps,
/// in which memory is touched for the first time, do not count if there are more.
void correct(std::vector<schedule::SampleCost>& costs, const config::Deck& deck, workload::DataOrder& order,
             const std::string& run) {
    constexpr std::int64_t kWarmUp = 3;
    const std::string path = run + "/metrics.h5";
    if (!std::filesystem::exists(path))
        throw Error(ExitCode::input_missing,
                    fmt::format("--measured {}: there is no metrics.h5; name the directory of a run", run),
                    Scope::all_ranks);
    const std::vector<io::TaskRow> tasks = io::read_metrics(path).tasks;
    const std::size_t sections = deck.sections.size();
    std::vector<std::array<double, 2>> took(sections), said(sections);
    std::set<std::int64_t> steps;
    for (const io::TaskRow& t : tasks) steps.insert(t.step);
    while (steps.size() > 2 * kWarmUp && *steps.begin() <= kWarmUp) steps.erase(steps.begin());
    for (const io::TaskRow& t : tasks) {
        if (t.section < 0 || static_cast<std::size_t>(t.section) >= sections || t.phase < 0 || t.phase > 1 ||
            t.step < 1)
            throw Error(ExitCode::bad_data,
                        fmt::format("{}: a task of section {}; is this a run of the deck?", path, t.section),
                        Scope::all_ranks);
        if (steps.contains(t.step))
            took[static_cast<std::size_t>(t.section)][static_cast<std::size_t>(t.phase)] +=
                t.end_s - t.start_s;
    }
    for (const std::int64_t step : steps)
        for (const std::int64_t id : order.batch(step - 1))
            for (std::size_t s = 0; s < sections; ++s) {
                said[s][0] += costs[static_cast<std::size_t>(id)].sections[s].forward_s;
                said[s][1] += costs[static_cast<std::size_t>(id)].sections[s].backward_s;
            }
    for (std::size_t s = 0; s < sections; ++s) {
        std::array<double, 2> factor{1, 1};
        for (std::size_t phase = 0; phase < 2; ++phase)
            if (took[s][phase] > 0 && said[s][phase] > 0) factor[phase] = took[s][phase] / said[s][phase];
        log::info("{}: section {} took {:.3f} times the model's time forward, {:.3f} backward", run,
                  deck.sections[s].name, factor[0], factor[1]);
        for (schedule::SampleCost& cost : costs) {
            cost.sections[s].forward_s *= factor[0];
            cost.sections[s].backward_s *= factor[1];
        }
    }
}

}  // namespace

schedule::Problem problem_on(const config::Deck& deck, const config::Cluster& cluster, std::int64_t step,
                             const std::string& measured, double& tokens) {
    const data::SampleFile samples(deck.data.train);
    workload::check_samples(deck, samples);
    const workload::SampleTable table = workload::table_of(deck, samples);
    auto costs = workload::sample_costs(deck, samples.marker(), table, &cluster);
    workload::DataOrder order(deck.run.seed, table.size(), deck.data.global_batch);
    if (!measured.empty()) correct(costs, deck, order, measured);
    schedule::Problem problem = workload::problem_of(deck.graph);
    for (schedule::EdgeShape& edge : problem.edges)
        edge.latency_s = workload::link_of(deck, cluster).latency_s;
    tokens = 0;
    for (const std::int64_t id : order.batch(step - 1)) {
        problem.samples.push_back(costs[static_cast<std::size_t>(id)]);
        for (std::size_t s = 0; s < problem.sections.size(); ++s)
            if (problem.sections[s].loss)
                tokens += static_cast<double>(table.length(id, static_cast<int>(s)));
    }
    return problem;
}

Result simulate_step(schedule::Problem problem, const Options& options) {
    Result result;
    result.policy = options.policy;
    if (options.policy == "one-size") {
        result.problem = schedule::with_noise(std::move(problem), options.noise, options.seed);
        result.timeline = schedule::simulate_one_size(result.problem);
        result.lower_bound_s = schedule::one_size_bound(result.problem);
        for (const auto& t : result.timeline.tasks)
            result.samples.push_back(
                {result.problem.samples[static_cast<std::size_t>(t.task.micro_batch)].id});
        return result;
    }
    const auto start = std::chrono::steady_clock::now();
    const schedule::StepPlan plan = schedule::make_plan(options.policy, problem, 1, options.moves);
    result.schedule_ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    result.problem = schedule::with_noise(std::move(problem), options.noise, options.seed);
    result.lower_bound_s = schedule::lower_bound(result.problem);
    result.timeline = schedule::simulate(result.problem, plan, options.dispatch);
    for (const auto& t : result.timeline.tasks)
        result.samples.push_back(
            plan.batches[static_cast<std::size_t>(t.task.section)][static_cast<std::size_t>(t.replica)]
                        [static_cast<std::size_t>(t.task.micro_batch)]
                            .samples);
    return result;
}

std::string describe(const Result& result, const graph::SectionGraph& graph) {
    std::string text =
        fmt::format("{:<20}{:>8}{:>14}{:>10}{:>10}\n", "section", "ranks", "work/rank s", "of bound", "idle");
    const std::vector<double> busy = busy_of(result);
    const int critical = schedule::critical_section(result.problem);
    for (std::size_t s = 0; s < busy.size(); ++s) {
        const double load = busy[s] / ranks_of(result, s);
        text +=
            fmt::format("{:<20}{:>8}{:>14.6g}{:>9.1f}%{:>9.1f}%{}\n", graph.sections[s].name,
                        ranks_of(result, s), load, 100 * load / std::max(result.lower_bound_s, 1e-300),
                        100 * (1 - load / std::max(result.timeline.makespan_s, 1e-300)),
                        static_cast<int>(s) == critical && result.policy != "one-size" ? "  critical" : "");
    }
    text += fmt::format(
        "{}: {} samples on {} ranks in {:.6g} s; no schedule is shorter than {:.6g} s, gap {:.2f}%",
        result.policy, result.problem.samples.size(), result.problem.world, result.timeline.makespan_s,
        result.lower_bound_s, 100 * gap_of(result));
    if (result.tokens > 0)
        text += fmt::format("\n{:.6g} tokens, {:.6g} tokens/s", result.tokens,
                            result.tokens / result.timeline.makespan_s);
    return text;
}

std::string to_json(const Result& result, const graph::SectionGraph& graph) {
    nlohmann::ordered_json json;
    json["policy"] = result.policy;
    json["samples"] = result.problem.samples.size();
    json["ranks"] = result.problem.world;
    json["makespan_s"] = result.timeline.makespan_s;
    json["lower_bound_s"] = result.lower_bound_s;
    json["gap"] = gap_of(result);
    json["schedule_ms"] = result.schedule_ms;
    if (result.tokens > 0) {
        json["tokens"] = result.tokens;
        json["tokens_per_s"] = result.tokens / result.timeline.makespan_s;
        json["tokens_per_rank_hour"] =
            3600 * result.tokens / result.timeline.makespan_s / result.problem.world;
    }
    const std::vector<double> busy = busy_of(result);
    for (std::size_t s = 0; s < busy.size(); ++s) {
        const double load = busy[s] / ranks_of(result, s);
        json["sections"][graph.sections[s].name] = {
            {"ranks", ranks_of(result, s)},
            {"work_s", load},
            {"idle", result.timeline.makespan_s > 0 ? 1 - load / result.timeline.makespan_s : 0.0}};
    }
    return json.dump();
}

std::string to_csv(const Result& result, const graph::SectionGraph& graph) {
    std::string text = "section,replica,sample,phase,start_s,end_s\n";
    for (std::size_t k = 0; k < result.timeline.tasks.size(); ++k) {
        const schedule::TimedTask& t = result.timeline.tasks[k];
        for (const std::int64_t sample : result.samples[k])
            text += fmt::format("{},{},{},{},{:.9f},{:.9f}\n",
                                graph.sections[static_cast<std::size_t>(t.task.section)].name, t.replica,
                                sample, t.task.phase == schedule::Phase::forward ? "forward" : "backward",
                                t.start_s, t.end_s);
    }
    return text;
}

void run_simulation(const config::CommandLine& line, const config::Deck& deck) {
    schedule::Problem problem;
    double tokens = 0;
    if (line.costs.empty()) {
        const config::Cluster cluster = config::parse_cluster(config::read_text(line.cluster), line.cluster);
        problem = problem_on(deck, cluster, line.step, line.measured, tokens);
    } else {
        problem = workload::problem_of(deck.graph);
        problem.zero_is_none = true;
        problem.samples = read_costs(line.costs, deck.graph);
    }
    Result result = simulate_step(
        std::move(problem), {.policy = line.policy.empty() ? deck.schedule.policy : line.policy,
                             .moves = deck.schedule.moves,
                             .dispatch = deck.schedule.dispatch == "ready" ? schedule::Dispatch::ready
                                                                           : schedule::Dispatch::planned,
                             .noise = line.noise,
                             .seed = line.seed});
    result.tokens = tokens;
    if (!line.timeline.empty()) write_text_file(line.timeline, to_csv(result, deck.graph));
    log::info("{}", describe(result, deck.graph));
    log::info("{}", to_json(result, deck.graph));
}

}  // namespace maestro::simulation
