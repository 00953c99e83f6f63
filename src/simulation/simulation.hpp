// `maestro simulate`: plans and simulates a step of a deck under a policy.
#pragma once

#include <string>

#include "config/command_line.hpp"
#include "config/deck.hpp"
#include "recorded/corrections.hpp"
#include "schedule/execution/simulate.hpp"
#include "schedule/problem/step_plan.hpp"
#include "simulation/inputs.hpp"
#include "workload/scenario.hpp"

namespace maestro::simulation {

struct Result {
    std::string policy;
    schedule::Problem problem;
    schedule::Timeline timeline;
    schedule::StepPlan plan;  ///< empty under one-size
    double lower_bound_s = 0;
    bool window_limited = false;               ///< see schedule::StepPlan
    double schedule_ms = 0;                    ///< time that making the plan took
    double tokens = 0;                         ///< of the language models in the step; 0: unknown
    double step_s = 0;                         ///< with the gradients' sum and the optimizer; 0: not known
    double measured_s = 0;                     ///< of a replay: what the run's tasks took, first to last
    std::vector<workload::StepCounts> counts;  ///< of each section; empty: not known
    std::vector<workload::RankMemory> memory;  ///< of a rank of each stage; empty: not known
    double device_memory = 0;                  ///< bytes that it has
    std::string shortage;                      ///< see Inputs
};

struct Options {
    std::string policy = "wavefront";  ///< also one-size
    std::int64_t step = 1;             ///< of the plan
    std::int64_t moves = 0;            ///< of the wavefront's search
    schedule::Dispatch dispatch = schedule::Dispatch::planned;
    double noise = 0;  ///< relative standard deviation of task times, unknown to the plan
    std::uint64_t seed = 1;
};

/// Plans and executes one step; the lower bound is that of the times with their noise. `batch_times`: those
/// of the micro-batches; empty: sums over their samples. Throws Error(bad_deck) where the windows are too
/// small.
Result simulate_step(schedule::Problem problem, const Options& options, const BatchTimes& batch_times = {});

/// Adds what models and cluster give besides task times: memory, tokens, the end of the step.
void complete(Result& result, const graph::SectionGraph& graph, const Inputs& inputs,
              schedule::Dispatch dispatch = schedule::Dispatch::planned);

/// A table of the stages, as text of several lines.
std::string describe(const Result& result, const graph::SectionGraph& graph);
/// One line: a JSON object (design: policy, samples, makespan_s, lower_bound_s, gap, schedule_ms, sections).
std::string to_json(const Result& result, const graph::SectionGraph& graph);
/// `section,replica,sample,phase,start_s,end_s`, a line for every sample of every task; with a last column
/// `stage` if a section has several.
std::string to_csv(const Result& result, const graph::SectionGraph& graph);

/// Returns what run_simulation() prints for the first step of the deck, on such devices of the scenario's
/// cluster.
Result predict_step(const config::Deck& deck, const workload::Scenario& scenario,
                    const workload::RankDevice& device);

/// The command: reads the inputs, simulates, prints, and writes the timeline if one is requested.
/// `scenario` is the deck's, `measured` the run of --measured or null.
void run_simulation(const config::CommandLine& line, const config::Deck& deck, workload::Scenario scenario,
                    const recorded::Run* measured);

}  // namespace maestro::simulation
