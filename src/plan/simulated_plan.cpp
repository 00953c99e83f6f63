#include "plan/simulated_plan.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.hpp"
#include "graph/grid.hpp"
#include "schedule/policies/policies.hpp"
#include "schedule/problem/bounds.hpp"
#include "workload/mixing.hpp"

namespace maestro::plan {

namespace {

/// Returns the timeline of the k-th step, and the seconds of the step.
std::pair<schedule::Timeline, double> run_step(const Subject& subject, const workload::StepEstimate& step,
                                               const workload::Scenario& scenario, std::size_t k,
                                               const std::string& policy) {
    const schedule::StepPlan made =
        schedule::make_plan(policy, step.problem, static_cast<std::int64_t>(k) + 1, subject.effort);
    std::optional<schedule::Problem> mixed;
    if (subject.mixed)
        mixed = workload::with_mixed_batches(step.problem, made, scenario, subject.table, subject.probes);
    const schedule::Problem& problem = mixed ? *mixed : step.problem;
    schedule::Timeline timeline = schedule::simulate(problem, made, subject.dispatch);
    const double seconds = workload::running_step_seconds(problem, made, timeline, scenario.graph, step.ends,
                                                          step.latency_s, subject.dispatch);
    return {std::move(timeline), seconds};
}

/// Sets the plan's figures that follow from a simulated step, the k-th of all.
void simulate_step(const Subject& subject, Plan& plan, std::size_t k, const std::string& policy) {
    const workload::StepEstimate step = subject.estimate(plan.scenario, k);
    const graph::SectionGraph& graph = plan.scenario.graph;
    const auto [timeline, seconds] = run_step(subject, step, plan.scenario, k, policy);
    plan.step_s += seconds;
    plan.end_share += std::max(0.0, seconds - timeline.makespan_s);  // seconds until all steps are added
    plan.tokens += step.tokens;
    plan.busy.resize(graph.sections.size(), 0.0);
    std::vector<double> ends_s(graph.sections.size(), 0.0);
    for (const schedule::TimedTask& t : timeline.tasks) {
        const int section = graph.stages[t.task.stage].section;
        double& end_s = ends_s[static_cast<std::size_t>(section)];
        end_s = std::max(end_s, t.end_s);
        plan.busy[static_cast<std::size_t>(section)] +=
            (t.end_s - t.start_s) / graph.sections[section].lanes();
    }
    plan.ends_s += std::accumulate(ends_s.begin(), ends_s.end(), 0.0);
    if (k > 0) return;
    const int critical = schedule::critical_stage(step.problem);
    plan.critical = graph.section_of(critical).name;
    for (const workload::StageMemory& stage : step.memory.stages) plan.windows.push_back(stage.window);
    plan.memory.assign(graph.sections.size(), 0.0);
    for (int s = 0; s < static_cast<int>(graph.stages.size()); ++s) {
        const int rank = graph::first_rank_of(graph, s);
        const double bytes = workload::memory_of(step.memory, graph, rank).needed();
        // A section's fullest rank may be one on which another section has a larger stage.
        for (std::size_t section = 0; section < plan.memory.size(); ++section)
            if (graph::holds(graph.sections[section], rank))
                plan.memory[section] = std::max(plan.memory[section], bytes);
    }
}

}  // namespace

bool have_same_choices(const Plan& a, const Plan& b) {
    return a.choices == b.choices && a.host_of == b.host_of;
}

bool insert(std::vector<Plan>& plans, Plan plan) {
    if (std::any_of(plans.begin(), plans.end(),
                    [&](const Plan& other) { return have_same_choices(plan, other); }))
        return false;
    const auto slower = std::find_if(plans.begin(), plans.end(), [&](const Plan& other) {
        return plan.step_s < other.step_s * (1 - kRounding) ||
               (plan.step_s < other.step_s * (1 + kRounding) && plan.ranks < other.ranks);
    });
    plans.insert(slower, std::move(plan));
    return true;
}

std::string quick_policy(const std::string& policy) {
    return policy == "wavefront" ? "lpt" : policy;
}

double seconds_of_step(const Subject& subject, const workload::Scenario& scenario,
                       const workload::StepEstimate& step, std::size_t k, const std::string& policy) {
    return run_step(subject, step, scenario, k, policy).second;
}

Plan simulated(const Subject& subject, Plan plan, const std::string& policy) {
    plan.step_s = plan.ends_s = plan.tokens = plan.end_share = 0;
    plan.windows.clear();
    plan.busy.clear();
    for (std::size_t k = 0; k < subject.steps.size(); ++k) simulate_step(subject, plan, k, policy);
    for (double& busy : plan.busy) busy /= plan.step_s;
    plan.end_share /= plan.step_s;
    return plan;
}

std::optional<Plan> plan_of(const Subject& subject, std::vector<Choice> choices, std::vector<int> host_of,
                            const std::string& policy) {
    Balance balance(subject);
    std::vector<graph::Refusal> refusals;
    Plan plan{.choices = std::move(choices), .host_of = std::move(host_of)};
    plan.scenario = balance.scenario(plan.choices, plan.host_of, refusals);
    if (!refusals.empty()) return {};
    plan.ranks = plan.scenario.graph.world;
    try {
        const workload::StepEstimate step = subject.estimate(plan.scenario, 0);
        if (!step.shortage.empty()) return {};
    } catch (const Error& error) {
        if (error.code() != ExitCode::bad_deck) throw;
        return {};
    }
    return simulated(subject, std::move(plan), policy);
}

std::pair<std::vector<Choice>, std::vector<int>> choices_of(const workload::Scenario& scenario) {
    std::vector<Choice> choices;
    std::vector<int> host_of;
    for (std::size_t s = 0; s < scenario.graph.sections.size(); ++s) {
        const graph::Section& section = scenario.graph.sections[s];
        choices.push_back({.layout = section.layout,
                           .micro_batch = section.micro_batch,
                           .recompute = scenario.tuning[s].recompute,
                           .recompute_layers = scenario.tuning[s].recompute_layers});
        int host = static_cast<int>(s);
        for (std::size_t other = 0; other < scenario.graph.sections.size(); ++other)
            if (scenario.graph.sections[other].name == section.colocate_with) host = static_cast<int>(other);
        host_of.push_back(host);
    }
    return {choices, host_of};
}

}  // namespace maestro::plan
