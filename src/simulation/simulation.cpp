#include "simulation/simulation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/log.hpp"
#include "base/text_file.hpp"
#include "graph/grid.hpp"
#include "schedule/policies/policies.hpp"
#include "schedule/problem/bounds.hpp"
#include "simulation/costs_file.hpp"
#include "simulation/inputs.hpp"
#include "workload/costs.hpp"
#include "workload/training_samples.hpp"

namespace maestro::simulation {

namespace {

/// Returns the seconds that the lanes of each stage run its tasks, by stage.
std::vector<double> busy_of(const Result& result) {
    std::vector<double> busy(result.problem.stages.size(), 0.0);
    for (const auto& t : result.timeline.tasks) busy[t.task.stage] += t.end_s - t.start_s;
    return busy;
}

/// A ratio to a time of 0, where no task takes any. JSON shows it as null.
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double gap_of(const Result& result) {
    if (result.lower_bound_s <= 0) return kNone;
    const double gap = result.timeline.makespan_s / result.lower_bound_s - 1;
    return std::abs(gap) < 1e-12 ? 0 : gap;  // of rounding
}

/// A share as a percentage, "-" where it is NaN.
std::string percent(double share, int digits) {
    return std::isnan(share) ? "-" : fmt::format("{:.{}f}%", 100 * share, digits);
}

/// Returns the share of the step in which the lanes of the stage run no task of any stage.
double idle_of(const Result& result, std::size_t stage) {
    const schedule::StageShape& shape = result.problem.stages[stage];
    double busy = 0;
    for (const auto& t : result.timeline.tasks)
        if (t.lane >= shape.first_lane && t.lane <= shape.lane(shape.groups - 1) &&
            (t.lane - shape.first_lane) % shape.lane_stride == 0)
            busy += t.end_s - t.start_s;
    if (result.timeline.makespan_s <= 0) return kNone;
    return 1 - busy / shape.groups / result.timeline.makespan_s;
}

}  // namespace

Result simulate_step(schedule::Problem problem, const Options& options, const BatchTimes& batch_times) {
    Result result;
    result.policy = options.policy;
    if (options.policy == "one-size") {
        result.problem = schedule::with_noise(std::move(problem), options.noise, options.seed);
        result.timeline = schedule::simulate_one_size(result.problem);
        result.lower_bound_s = schedule::one_size_bound(result.problem);
        return result;
    }
    const auto start = std::chrono::steady_clock::now();
    result.plan = schedule::make_plan(options.policy, problem, options.step, {.moves = options.moves});
    result.schedule_ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    result.window_limited = result.plan.window_limited;
    if (batch_times) problem = batch_times(std::move(problem), result.plan);
    result.problem = schedule::with_noise(std::move(problem), result.plan, options.noise, options.seed);
    result.lower_bound_s =
        options.noise > 0 || batch_times ? schedule::lower_bound(result.problem) : result.plan.lower_bound_s;
    result.timeline = schedule::simulate(result.problem, result.plan, options.dispatch);
    return result;
}

void complete(Result& result, const graph::SectionGraph& graph, const Inputs& inputs,
              schedule::Dispatch dispatch) {
    result.tokens = inputs.tokens;
    result.counts = inputs.counts;
    if (inputs.measured_s > 0) {
        result.measured_s = inputs.measured_s;
        result.step_s = result.timeline.makespan_s + inputs.rest_s;
    }
    if (!inputs.memory.stages.empty()) {
        result.device_memory = inputs.device_memory;
        result.shortage = inputs.shortage;
        for (int s = 0; s < static_cast<int>(graph.stages.size()); ++s)
            result.memory.push_back(
                workload::memory_of(inputs.memory, graph, graph::first_rank_of(graph, s)));
    }
    if (inputs.ends.empty()) return;
    result.step_s = result.policy == "one-size"
                        ? workload::step_seconds(result.timeline, graph, inputs.ends, inputs.latency_s)
                        : workload::running_step_seconds(result.problem, result.plan, result.timeline, graph,
                                                         inputs.ends, inputs.latency_s, dispatch);
}

std::string describe(const Result& result, const graph::SectionGraph& graph) {
    const bool memory = !result.memory.empty();
    std::string text =
        fmt::format("{:<20}{:>8}{:>14}{:>10}{:>10}", "section", "ranks", "work/rank s", "of bound", "idle");
    text += memory ? fmt::format("{:>8}{:>12}\n", "window", "memory GB") : "\n";
    const std::vector<double> busy = busy_of(result);
    const int critical = schedule::critical_stage(result.problem);
    for (std::size_t s = 0; s < busy.size(); ++s) {
        const graph::Layout& layout = graph.section_of(static_cast<int>(s)).layout;
        const double load = busy[s] / result.problem.stages[s].groups;
        text += fmt::format("{:<20}{:>8}{:>14.6g}{:>10}{:>10}", graph.stage_name(static_cast<int>(s)),
                            layout.dp * layout.stage_ranks(), load,
                            percent(result.lower_bound_s > 0 ? load / result.lower_bound_s : kNone, 1),
                            percent(idle_of(result, s), 1));
        if (memory) {
            const double bytes = result.memory[s].needed();
            const bool too_large = !result.shortage.empty() && bytes > result.device_memory;
            text += fmt::format(
                "{:>8}{:>12.3f}{}",
                result.problem.stages[s].loss ? "-" : fmt::format("{}", result.problem.stages[s].window),
                bytes / 1e9, too_large ? "  does not fit" : "");
        }
        text += static_cast<int>(s) == critical && result.policy != "one-size" ? "  critical\n" : "\n";
    }
    text +=
        fmt::format("{}: {} samples on {} ranks in {:.6g} s; no schedule is shorter than {:.6g} s, gap {}",
                    result.policy, result.problem.samples.size(), graph.world, result.timeline.makespan_s,
                    result.lower_bound_s, percent(gap_of(result), 2));
    if (result.window_limited)
        text +=
            "\na window is too small for the micro-batches; the plan makes them smaller or orders them as "
            "lpt does";
    if (result.step_s > 0)
        text += fmt::format(
            "\nwith gradients and optimizer a step takes {:.6g} s; {:.6g} tokens, {:.6g} tokens/s",
            result.step_s, result.tokens, result.tokens / result.step_s);
    if (!result.counts.empty()) {
        const auto total = [&](double workload::StepCounts::*what) {
            double sum = 0;
            for (const workload::StepCounts& c : result.counts) sum += c.*what;
            return sum;
        };
        text += fmt::format("\n{:.4g} FLOP, {:.4g} GB of memory traffic", total(&workload::StepCounts::flops),
                            total(&workload::StepCounts::memory_bytes) / 1e9);
        if (result.policy != "one-size")
            text += fmt::format(
                ", {:.4g} GB over edges, {:.4g} GB among tp and {:.4g} GB among cp ranks{}{}, {:.4g} GB "
                "to sum gradients and gather weights",
                total(&workload::StepCounts::edge_bytes) / 1e9, total(&workload::StepCounts::tp_bytes) / 1e9,
                total(&workload::StepCounts::cp_bytes) / 1e9,
                total(&workload::StepCounts::ep_bytes) > 0
                    ? fmt::format(", {:.4g} GB to and from experts",
                                  total(&workload::StepCounts::ep_bytes) / 1e9)
                    : "",
                graph.has_pipelines()
                    ? fmt::format(", {:.4g} GB between stages", total(&workload::StepCounts::pp_bytes) / 1e9)
                    : "",
                total(&workload::StepCounts::dp_bytes) / 1e9);
    }
    if (memory) text += fmt::format("\na rank of the device has {:.3f} GB", result.device_memory / 1e9);
    if (!result.shortage.empty()) text += "\nit does not fit: " + result.shortage;
    return text;
}

namespace {

nlohmann::ordered_json stage_json(const Result& result, int stage, const std::vector<double>& busy) {
    const auto s = static_cast<std::size_t>(stage);
    nlohmann::ordered_json json = {{"work_s", busy[s] / result.problem.stages[s].groups},
                                   {"idle", idle_of(result, s)}};
    if (result.memory.empty()) return json;
    json["window"] = result.problem.stages[s].window;
    json["memory_bytes"] = result.memory[s].needed();
    return json;
}

/// Of a section with several stages: the work of the pipeline rank with the most, the mean of their idle
/// times, the window of the first stage and the memory of the fullest rank, then each stage.
nlohmann::ordered_json section_json(const Result& result, const graph::SectionGraph& graph, int section,
                                    const std::vector<double>& busy) {
    const graph::Section& s = graph.sections[section];
    std::vector<nlohmann::ordered_json> stages;
    for (int stage = s.first_stage; stage <= graph.last_stage(section); ++stage)
        stages.push_back(stage_json(result, stage, busy));
    const auto largest = [&](const char* key) {
        double most = 0;
        for (const auto& stage : stages) most = std::max(most, stage[key].template get<double>());
        return most;
    };
    // A pipeline rank works for all of its chunks.
    std::vector<double> work(static_cast<std::size_t>(s.layout.pp), 0.0);
    for (std::size_t k = 0; k < stages.size(); ++k)
        work[k % work.size()] += stages[k]["work_s"].template get<double>();
    nlohmann::ordered_json json;
    json["ranks"] = s.layout.ranks();
    json["work_s"] = *std::max_element(work.begin(), work.end());
    double idle = 0;
    for (const auto& stage : stages) idle += stage["idle"].template get<double>();
    json["idle"] = idle / static_cast<double>(stages.size());
    if (!result.counts.empty()) {
        const workload::StepCounts& counts = result.counts[section];
        json["flops"] = counts.flops;
        json["memory_traffic_bytes"] = counts.memory_bytes;
        if (result.policy != "one-size") {
            json["edge_bytes"] = counts.edge_bytes;
            json["tp_bytes"] = counts.tp_bytes;
            json["cp_bytes"] = counts.cp_bytes;
            if (graph.sections[section].layout.ep * graph.sections[section].layout.etp > 1)
                json["ep_bytes"] = counts.ep_bytes;
            if (stages.size() > 1) json["pp_bytes"] = counts.pp_bytes;
            json["dp_bytes"] = counts.dp_bytes;
        }
    }
    if (!result.memory.empty()) {
        json["window"] = stages.front()["window"];
        json["memory_bytes"] = largest("memory_bytes");
    }
    if (stages.size() > 1) json["stages"] = stages;
    return json;
}

}  // namespace

std::string to_json(const Result& result, const graph::SectionGraph& graph) {
    nlohmann::ordered_json json;
    json["policy"] = result.policy;
    json["samples"] = result.problem.samples.size();
    json["ranks"] = graph.world;
    json["makespan_s"] = result.timeline.makespan_s;
    json["lower_bound_s"] = result.lower_bound_s;
    json["gap"] = gap_of(result);
    json["schedule_ms"] = result.schedule_ms;
    if (result.measured_s > 0) json["measured_s"] = result.measured_s;
    if (result.step_s > 0) {
        json["step_s"] = result.step_s;
        json["tokens"] = result.tokens;
        json["tokens_per_s"] = result.tokens / result.step_s;
        json["tokens_per_rank_hour"] = 3600 * result.tokens / result.step_s / graph.world;
    }
    const std::vector<double> busy = busy_of(result);
    for (int s = 0; s < static_cast<int>(graph.sections.size()); ++s)
        json["sections"][graph.sections[s].name] = section_json(result, graph, s, busy);
    if (!result.memory.empty()) {
        json["peak_memory_bytes"] =
            std::max_element(result.memory.begin(), result.memory.end(), [](const auto& a, const auto& b) {
                return a.needed() < b.needed();
            })->needed();
        json["fits"] = result.shortage.empty();
    }
    return json.dump();
}

std::string to_csv(const Result& result, const graph::SectionGraph& graph) {
    const bool stages = graph.has_pipelines();
    std::string text = fmt::format("section,replica,sample,phase,start_s,end_s{}\n", stages ? ",stage" : "");
    const auto add = [&](const schedule::TimedTask& t, int replica, std::int64_t sample) {
        fmt::format_to(std::back_inserter(text), "{},{},{},{},{:.9f},{:.9f}{}\n",
                       graph.section_of(t.task.stage).name, replica, sample,
                       t.task.phase == schedule::Phase::forward ? "forward" : "backward", t.start_s, t.end_s,
                       stages ? fmt::format(",{}", graph.stages[t.task.stage].index) : "");
    };
    for (const schedule::TimedTask& t : result.timeline.tasks) {
        if (result.policy == "one-size") {
            add(t, t.group, result.problem.samples[t.task.micro_batch].id);
            continue;
        }
        const schedule::MicroBatch& batch =
            result.plan.batches[graph.stages[t.task.stage].section][t.group][t.task.micro_batch];
        const int parts = graph.section_of(t.task.stage).lane_replicas;
        for (int part = 0; part < parts; ++part)
            for (const std::int64_t sample : batch.of_part(part)) add(t, t.group * parts + part, sample);
    }
    return text;
}

namespace {

/// Simulates a step, with the deck's keys for what `options` leaves to them: moves, dispatch and the step.
Result simulate_inputs(Inputs inputs, const graph::SectionGraph& graph, const config::Deck& deck,
                       Options options) {
    options.step = inputs.step;
    options.moves = deck.schedule.moves;
    options.dispatch =
        deck.schedule.dispatch == "ready" ? schedule::Dispatch::ready : schedule::Dispatch::planned;
    const schedule::Dispatch dispatch = options.dispatch;
    Result result = simulate_step(std::move(inputs.problem), options, inputs.batch_times);
    complete(result, graph, inputs, dispatch);
    return result;
}

/// Replaces the costs of a section's stages by their sums: in one layout every section has one stage.
void add_up_stages(std::vector<schedule::SampleCost>& samples, const graph::SectionGraph& graph) {
    for (schedule::SampleCost& sample : samples) {
        std::vector<schedule::TaskCost> sections(graph.sections.size());
        for (std::size_t s = 0; s < sample.stages.size(); ++s) {
            schedule::TaskCost& sum = sections[graph.stages[s].section];
            sum.active = sample.stages[s].active;
            sum.forward_s += sample.stages[s].forward_s;
            sum.backward_s += sample.stages[s].backward_s;
        }
        sample.stages = std::move(sections);
    }
}
}  // namespace

Result predict_step(const config::Deck& deck, const workload::Scenario& scenario,
                    const workload::RankDevice& device) {
    const std::unique_ptr<data::Samples> samples = workload::training_samples(deck, scenario);
    return simulate_inputs(
        inputs_of(scenario, *samples, {.device = device, .plan = workload::plan_options_of(deck)}),
        scenario.graph, deck, {.policy = deck.schedule.policy});
}

void run_simulation(const config::CommandLine& line, const config::Deck& deck, workload::Scenario scenario,
                    const recorded::Run* measured) {
    const std::string policy = line.policy.empty() ? deck.schedule.policy : line.policy;
    const graph::SectionGraph of_deck = scenario.graph;
    if (policy == "one-size") scenario = workload::in_one_layout(scenario);
    const graph::SectionGraph& graph = scenario.graph;
    Inputs inputs;
    std::unique_ptr<data::Samples> samples;
    if (line.costs.empty()) {
        if (!line.cluster.empty() && deck.run.precision == "fp64")
            throw Error(ExitCode::bad_deck,
                        line.deck +
                            ": run.precision: fp64, for which cluster files have no rates; add --set "
                            "run.precision=fp32 or bf16");
        if (!line.cluster.empty())
            scenario = workload::on_cluster(
                std::move(scenario), config::parse_cluster(config::read_text(line.cluster), line.cluster));
        if (measured) recorded::add_corrections(scenario, deck, *measured);
        Source source{.replay = line.replay, .step = line.step};
        if (scenario.cluster) {
            source.device = workload::rank_device_of(*scenario.cluster, deck.run);
            source.plan = workload::plan_options_of(deck);
            // The tasks of a sample run one after another, so that nothing else is in flight.
            source.plan.least_windows = policy == "one-size";
        }
        samples = workload::training_samples(deck, scenario);
        inputs = inputs_of(scenario, *samples, source);
        if (!line.replay.empty())
            log::info(
                "{}: the tasks of step {} took {:.6g} s from first to last, the rest of the step {:.6g} s",
                line.replay, inputs.step, inputs.measured_s, inputs.rest_s);
    } else {
        inputs.problem = workload::problem_of(scenario);
        inputs.problem.zero_is_none = true;
        inputs.problem.samples = read_costs(line.costs, of_deck);
        if (policy == "one-size") add_up_stages(inputs.problem.samples, of_deck);
    }
    const Result result = simulate_inputs(std::move(inputs), graph, deck,
                                          {.policy = policy, .noise = line.noise, .seed = line.seed});
    if (!line.timeline.empty()) write_text_file(line.timeline, to_csv(result, graph));
    log::info("{}", describe(result, graph));
    log::info("{}", to_json(result, graph));
}

}  // namespace maestro::simulation
