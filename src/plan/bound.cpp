#include "plan/bound.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "schedule/problem/bounds.hpp"
#include "workload/step_tail.hpp"

namespace maestro::plan {

namespace {

/// The tasks of a stage in a step, all samples together.
struct StageWork {
    double forward_s = 0, backward_s = 0;  ///< sums
    /// The most seconds of one forward or backward task, and of a group's last backward task on average.
    double longest_forward_s = 0, longest_backward_s = 0, mean_last_s = 0;
};

double sum_of_largest(std::vector<double> values, std::size_t count) {
    count = std::min(count, values.size());
    const auto end = values.begin() + static_cast<std::ptrdiff_t>(count);
    std::partial_sort(values.begin(), end, values.end(), std::greater<>());
    return std::accumulate(values.begin(), end, 0.0);
}

StageWork work_of(const schedule::Problem& problem, std::size_t stage) {
    const schedule::StageShape& shape = problem.stages[stage];
    StageWork work;
    std::vector<double> forwards, backwards;
    for (const schedule::SampleCost& sample : problem.samples) {
        const schedule::TaskCost& cost = sample.stages[stage];
        if (!cost.active) continue;
        forwards.push_back(cost.forward_s);
        backwards.push_back(shape.backward ? cost.backward_s : 0);
        work.forward_s += forwards.back();
        work.backward_s += backwards.back();
    }
    const auto most = static_cast<std::size_t>(shape.micro_batch);
    work.longest_forward_s = sum_of_largest(forwards, most);
    work.longest_backward_s = sum_of_largest(backwards, most);
    // A group's last task takes no longer than all of its tasks, and the tasks of all groups no longer than
    // the sum over the samples.
    work.mean_last_s = std::min(work.longest_backward_s, work.backward_s / shape.groups);
    return work;
}

/// Returns how long after the end of the last backward, which takes at most `last_s`, the stage's sums end.
double sums_after(const workload::StepEnd& end, double last_s) {
    const std::vector<std::size_t> order = workload::sum_order(end);
    double after_s = 0, rest_s = 0;
    for (auto group = order.rbegin(); group != order.rend(); ++group) {
        rest_s += end[*group].sum_s;
        after_s = std::max(after_s, rest_s - (1 - end[*group].final_at) * last_s);
    }
    return after_s + end[order.back()].after_sum_s;
}

/// Returns how long after the start of a step a group's first forward, which takes at most `first_s`, could
/// end at the earliest if the rest of its work took no time: it waits for its weights. `updates_s`: the
/// seconds of all updates on the lane where they take longest, at whose end a step begins.
double gathers_before(const workload::StepEnd& end, double first_s, double updates_s) {
    // Gathers run one after another. The first may begin before the step does, once its group is updated.
    double wait_s = 0, gathered_s = end.front().update_s - updates_s;
    for (const workload::GroupTimes& group : end) {
        gathered_s += group.gather_s;
        wait_s = std::max(wait_s, gathered_s - group.needed_at * first_s);
    }
    return wait_s;
}

/// By section: the sections whose rows it needs, directly or not.
std::vector<std::vector<bool>> ancestors_of(const graph::SectionGraph& graph) {
    const std::size_t n = graph.sections.size();
    std::vector<std::vector<bool>> above(n, std::vector<bool>(n, false));
    for (std::size_t pass = 0; pass < n; ++pass)
        for (const graph::Edge& e : graph.edges) {
            above[static_cast<std::size_t>(e.to)][static_cast<std::size_t>(e.from)] = true;
            for (std::size_t s = 0; s < n; ++s)
                if (above[static_cast<std::size_t>(e.from)][s])
                    above[static_cast<std::size_t>(e.to)][s] = true;
        }
    return above;
}

/// Returns the mean over the lanes of a stage of the work on them that ends no later than the last backward
/// of the stage on any lane.
double work_until_last(const schedule::Problem& problem, const std::vector<StageWork>& work,
                       const std::vector<std::vector<bool>>& above, std::size_t stage) {
    const schedule::StageShape& shape = problem.stages[stage];
    std::vector<char> here(static_cast<std::size_t>(problem.lanes), 0);
    for (int g = 0; g < shape.groups; ++g) here[static_cast<std::size_t>(shape.lane(g))] = 1;
    double sum_s = 0;
    for (std::size_t s = 0; s < work.size(); ++s) {
        const schedule::StageShape& other = problem.stages[s];
        double seconds = 0;
        if (other.section == shape.section)  // forwards of all stages, and backwards of those behind it
            seconds = work[s].forward_s + (s >= stage ? work[s].backward_s : 0);
        else if (above[static_cast<std::size_t>(shape.section)][static_cast<std::size_t>(other.section)])
            seconds = work[s].forward_s;
        // How the work is divided among the lanes is not known.
        bool within = seconds > 0;
        for (int g = 0; g < other.groups && within; ++g)
            within = here[static_cast<std::size_t>(other.lane(g))] != 0;
        if (within) sum_s += seconds / other.parts;
    }
    return sum_s / shape.groups;
}

}  // namespace

double bound_of(const workload::StepEstimate& step, const graph::SectionGraph& graph) {
    const schedule::Problem& problem = step.problem;
    const std::size_t stages = problem.stages.size();
    std::vector<StageWork> work;
    std::vector<double> update_s(static_cast<std::size_t>(graph.lanes), 0.0);
    for (std::size_t s = 0; s < stages; ++s) {
        work.push_back(work_of(problem, s));
        double own_s = 0;
        for (const workload::GroupTimes& group : step.ends[s]) own_s += group.update_s;
        const schedule::StageShape& shape = problem.stages[s];
        for (int g = 0; g < shape.groups; ++g) update_s[static_cast<std::size_t>(shape.lane(g))] += own_s;
    }
    const double updates_s = *std::max_element(update_s.begin(), update_s.end());
    const std::vector<std::vector<bool>> above = ancestors_of(graph);
    double end_s = schedule::lower_bound(problem);
    for (std::size_t s = 0; s < stages; ++s) {
        const workload::StepEnd& end = step.ends[s];
        if (end.empty()) continue;
        const schedule::StageShape& shape = problem.stages[s];
        const double wait_s = gathers_before(end, work[s].longest_forward_s, updates_s);
        // Gradients are final no earlier than on average over the groups, of which each has ended its work,
        // and no earlier than on the group that ends last.
        const double mean_s = wait_s + (work[s].forward_s + work[s].backward_s) / shape.machines();
        end_s = std::max(
            {end_s, mean_s + sums_after(end, work[s].mean_last_s),
             work_until_last(problem, work, above, s) + sums_after(end, work[s].longest_backward_s)});
    }
    return end_s + workload::norm_seconds(graph, step.latency_s) + updates_s;
}

}  // namespace maestro::plan
