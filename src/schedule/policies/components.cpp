#include "schedule/policies/components.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "schedule/problem/bounds.hpp"

namespace maestro::schedule {

namespace {

/// The stages of a component as a separate problem, on the same lanes.
struct Component {
    Problem problem;
    std::vector<int> stages;    ///< of the whole problem, by those of this one
    std::vector<int> sections;  ///< likewise
};

Component component_of(const Problem& whole, const std::vector<int>& component, int number) {
    Component made;
    made.problem.lanes = whole.lanes;
    made.problem.zero_is_none = whole.zero_is_none;
    std::vector<int> place(whole.stages.size(), -1);
    for (std::size_t s = 0; s < whole.stages.size(); ++s) {
        const int section = whole.stages[s].section;
        if (component[section] != number) continue;
        if (made.sections.empty() || made.sections.back() != section) made.sections.push_back(section);
        place[s] = static_cast<int>(made.stages.size());
        made.stages.push_back(static_cast<int>(s));
        made.problem.stages.push_back(whole.stages[s]);
        made.problem.stages.back().section = static_cast<int>(made.sections.size()) - 1;
    }
    for (EdgeShape edge : whole.edges) {
        if (place[edge.from] < 0) continue;
        edge.from = place[edge.from];
        edge.to = place[edge.to];
        made.problem.edges.push_back(edge);
    }
    for (const SampleCost& sample : whole.samples) {
        SampleCost cost{.id = sample.id, .stages = {}};
        for (const int s : made.stages) cost.stages.push_back(sample.stages[s]);
        if (std::any_of(cost.stages.begin(), cost.stages.end(), [](const TaskCost& c) { return c.active; }))
            made.problem.samples.push_back(std::move(cost));
    }
    return made;
}

}  // namespace

std::vector<int> components_of(const Problem& problem) {
    const auto sections = static_cast<std::size_t>(problem.sections());
    std::vector<int> root(sections);  // any section of the same component, by section
    std::iota(root.begin(), root.end(), 0);
    const auto join = [&](int a, int b) {
        const int from = root[a], to = root[b];
        if (from != to) std::replace(root.begin(), root.end(), std::max(from, to), std::min(from, to));
    };
    const auto section_of = [&](int stage) { return problem.stages[stage].section; };
    for (const EdgeShape& edge : problem.edges) join(section_of(edge.from), section_of(edge.to));
    std::vector<int> on_lane(static_cast<std::size_t>(problem.lanes), -1);
    for (const StageShape& stage : problem.stages)
        for (int group = 0; group < stage.groups; ++group) {
            int& other = on_lane[stage.lane(group)];
            if (other >= 0) join(other, stage.section);
            other = stage.section;
        }
    std::vector<char> loss(sections, 0);
    for (const StageShape& stage : problem.stages)
        if (stage.loss) loss[root[stage.section]] = 1;
    const auto first = std::find(loss.begin(), loss.end(), 1) - loss.begin();
    std::vector<int> component(sections), roots;
    for (std::size_t s = 0; s < sections; ++s) {
        const int of = loss[root[s]] != 0 ? root[s] : static_cast<int>(first);
        const auto at = std::find(roots.begin(), roots.end(), of);
        component[s] = static_cast<int>(at - roots.begin());
        if (at == roots.end()) roots.push_back(of);
    }
    return component;
}

StepPlan plan_components(const Problem& problem, const std::function<StepPlan(const Problem&)>& plan) {
    const std::vector<int> component = components_of(problem);
    const int count = component.empty() ? 1 : *std::max_element(component.begin(), component.end()) + 1;
    if (count == 1) return plan(problem);
    StepPlan whole{.batches = std::vector<std::vector<std::vector<MicroBatch>>>(component.size()),
                   .agendas = std::vector<std::vector<Task>>(static_cast<std::size_t>(problem.lanes)),
                   .lower_bound_s = lower_bound(problem),
                   .load_s = loads(problem),
                   .critical_stage = critical_stage(problem)};
    std::vector<double> ends_s(whole.agendas.size(), 0.0);
    for (int number = 0; number < count; ++number) {
        const Component part = component_of(problem, component, number);
        StepPlan made = plan(part.problem);
        whole.step = made.step;
        whole.makespan_s = std::max(whole.makespan_s, made.makespan_s);
        whole.window_limited = whole.window_limited || made.window_limited;
        for (std::size_t s = 0; s < part.sections.size(); ++s)
            whole.batches[part.sections[s]] = std::move(made.batches[s]);
        for (std::size_t lane = 0; lane < made.agendas.size(); ++lane) {
            if (made.agendas[lane].empty()) continue;
            for (Task& task : made.agendas[lane]) task.stage = part.stages[task.stage];
            whole.agendas[lane] = std::move(made.agendas[lane]);
            ends_s[lane] = made.makespan_s;
        }
    }
    // A component that ends before the step has that much more time.
    for (std::size_t lane = 0; lane < whole.agendas.size(); ++lane)
        for (Task& task : whole.agendas[lane]) task.float_s += whole.makespan_s - ends_s[lane];
    return whole;
}

}  // namespace maestro::schedule
