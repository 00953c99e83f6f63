#include "schedule/execution/plan_builder.hpp"

#include <algorithm>
#include <limits>

#include "schedule/problem/bounds.hpp"

namespace maestro::schedule {

namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();
constexpr double kRoundingOfMakespan = 1e-9;  ///< of the makespan

/// Returns for each micro-batch with a loss how much later it may end without making the execution longer,
/// apart from delaying the next task of its lane. That is its float in the critical path method (Kelley and
/// Walker, 1959) given the order of all other lanes. [node], seconds; no limit if nothing upstream waits for
/// it.
std::vector<double> floats(const Machine& machine, const std::vector<Executed>& executed, double makespan) {
    const std::size_t count = machine.nodes().size();
    std::vector<double> float_s(count, kNoLimit);
    std::vector<double> forward_s(count, kNoLimit), backward_s(count, kNoLimit);  // latest starts
    std::vector<double> started_s(count, 0.0);                                    // forwards, as executed
    std::vector<double> lane_s(machine.instance().lanes, makespan);
    // Backwards in time: the tasks that wait for a task start later, and their latest starts are known by
    // then.
    for (auto e = executed.rbegin(); e != executed.rend(); ++e) {
        const Node& n = machine.node(e->node);
        const int node = e->node;
        // The next task of the lane does not limit the float, because a lane that starts what is ready may
        // change its order. It limits the latest start, on which the floats of tasks on other lanes depend.
        double other_s = kNoLimit, own_s = lane_s[n.lane];  // latest ends
        if (e->phase == Phase::forward) {
            if (n.has_backward) own_s = std::min(own_s, backward_s[node]);
            for (const Link& down : machine.downstream(n))
                other_s = std::min(other_s, forward_s[down.node] - down.delay_s);
            // The end of this forward may have opened a window upstream. A node that started earlier did not
            // wait for it.
            for (const Link& up : machine.upstream(n))
                if (const int next = machine.waits_for_window(up.node);
                    next >= 0 && started_s[next] >= e->end_s)
                    other_s = std::min(other_s, forward_s[next]);
            started_s[node] = e->start_s;
        } else {
            for (const Link& up : machine.upstream(n))
                if (up.gradient) other_s = std::min(other_s, backward_s[up.node] - up.delay_s);
        }
        // A loss section runs both tasks without a pause, so one number is the limit of both.
        float_s[node] = std::min(float_s[node], other_s - e->end_s);
        const double start_s = std::min(own_s, other_s) - (e->end_s - e->start_s);
        (e->phase == Phase::forward ? forward_s : backward_s)[node] = start_s;
        lane_s[n.lane] = start_s;
    }
    return float_s;
}

}  // namespace

PlanBuilder::PlanBuilder(const Problem& problem, int sub_problems)
    : problem_(problem), sub_problems_(sub_problems) {
    plan_.lower_bound_s = lower_bound(problem);
    plan_.load_s = loads(problem);
    plan_.critical_stage = critical_stage(problem);
    plan_.agendas.resize(problem.lanes);
    ends_s_.resize(plan_.agendas.size(), 0.0);
    plan_.batches.resize(problem.sections());
    for (const StageShape& s : problem.stages) plan_.batches[s.section].resize(s.groups);
}

void PlanBuilder::add(const Machine& machine, const std::vector<Batches>& batches,
                      const std::vector<Executed>& executed, int sub_problem) {
    const Instance& instance = machine.instance();
    for (std::size_t s = 0; s < batches.size(); ++s) {
        const Batches& section = batches[s];
        const int groups = static_cast<int>(plan_.batches[s].size()) / sub_problems_;
        const int parts = instance.shape(instance.first_stage(static_cast<int>(s))).parts;
        // A sub-problem has the same share of every section's groups, and the sub-problems' groups follow
        // one another.
        int sample = 0, batch = 0;
        for (int r = 0; r < groups; ++r) {
            auto& list = plan_.batches[s][sub_problem * groups + r];
            for (; batch < section.group_ends[r + 1]; ++batch) {
                MicroBatch& micro = list.emplace_back();
                for (int part = 0; part < parts; ++part) {
                    for (int k = sample; k < section.ends[batch]; ++k)
                        if (parts == 1 || section.parts[k] == part)
                            micro.samples.push_back(instance.ids[section.samples[k]]);
                    if (parts > 1) micro.part_ends.push_back(static_cast<int>(micro.samples.size()));
                }
                sample = section.ends[batch];
            }
        }
    }
    double makespan = 0;
    for (const Executed& e : executed) makespan = std::max(makespan, e.end_s);
    plan_.makespan_s = std::max(plan_.makespan_s, makespan);
    const std::vector<double> float_s = floats(machine, executed, makespan);
    for (const Executed& e : executed) {
        const Node& n = machine.node(e.node);
        Task task{.stage = n.stage, .micro_batch = n.index, .phase = e.phase};
        if (e.phase == Phase::forward && instance.shape(n.stage).loss) {
            task.takes_s = n.forward_s + n.backward_s;
            task.float_s = float_s[e.node];
        }
        const int lane = lane_of(n, sub_problem);
        plan_.agendas[lane].push_back(task);
        ends_s_[lane] = makespan;
    }
}

int PlanBuilder::lane_of(const Node& node, int sub_problem) const {
    const StageShape& shape = problem_.stages[node.stage];
    return shape.lane(sub_problem * (shape.groups / sub_problems_) + node.group);
}

StepPlan PlanBuilder::finish(std::int64_t step) {
    plan_.step = step;
    // A sub-problem that ends before the step has that much more time. A little more, so that rounding does
    // not forbid what just fits.
    for (std::size_t lane = 0; lane < plan_.agendas.size(); ++lane)
        for (Task& task : plan_.agendas[lane])
            task.float_s =
                std::max(task.float_s + plan_.makespan_s * (1 + kRoundingOfMakespan) - ends_s_[lane], 0.0);
    return std::move(plan_);
}

}  // namespace maestro::schedule
