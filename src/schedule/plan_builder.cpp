#include "schedule/plan_builder.hpp"

#include <algorithm>
#include <limits>

#include "schedule/bounds.hpp"

namespace maestro::schedule {

namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

/// How much later than executed each node's backward may end without an effect beyond its own rank but on
/// the end of the execution: its float in the critical path method (Kelley and Walker 1959), were its rank
/// free. [node], seconds; no limit where no backward upstream waits for it.
std::vector<double> floats(const Machine& machine, const std::vector<Executed>& executed) {
    double makespan = 0;
    for (const Executed& e : executed) makespan = std::max(makespan, e.end_s);
    const std::size_t count = machine.nodes().size();
    std::vector<double> forward_s(count), backward_s(count), free_s(count, kNoLimit);  // latest starts
    std::vector<double> lane_s(static_cast<std::size_t>(machine.instance().lanes), makespan);
    // What follows a task stands behind it.
    for (auto e = executed.rbegin(); e != executed.rend(); ++e) {
        const Node& n = machine.node(e->node);
        const auto node = static_cast<std::size_t>(e->node);
        double& next_s = lane_s[static_cast<std::size_t>(n.lane)];
        double end_s = next_s;
        if (e->phase == Phase::forward) {
            if (n.has_backward) end_s = std::min(end_s, backward_s[node]);
            for (const Link& down : machine.downstream(n))
                end_s = std::min(end_s, forward_s[static_cast<std::size_t>(down.node)] - down.delay_s);
        } else {
            double gradient_s = kNoLimit;
            for (const Link& up : machine.upstream(n))
                if (up.gradient)
                    gradient_s =
                        std::min(gradient_s, backward_s[static_cast<std::size_t>(up.node)] - up.delay_s);
            free_s[node] = gradient_s - e->end_s;
            end_s = std::min(end_s, gradient_s);
        }
        next_s = end_s - (e->end_s - e->start_s);
        (e->phase == Phase::forward ? forward_s : backward_s)[node] = next_s;
    }
    return free_s;
}

}  // namespace

PlanBuilder::PlanBuilder(const Problem& problem, int groups) : problem_(problem), groups_(groups) {
    plan_.lower_bound_s = lower_bound(problem);
    plan_.load_s = loads(problem);
    plan_.critical_section = critical_section(problem);
    plan_.lanes.resize(static_cast<std::size_t>(problem.world));
    for (const SectionShape& s : problem.sections)
        plan_.batches.emplace_back(static_cast<std::size_t>(s.replicas));
}

void PlanBuilder::add(const Machine& machine, const std::vector<Batches>& batches,
                      const std::vector<Executed>& executed, int group) {
    const Instance& instance = machine.instance();
    for (std::size_t s = 0; s < batches.size(); ++s) {
        const Batches& own = batches[s];
        const int replicas = problem_.sections[s].replicas / groups_;
        int sample = 0, batch = 0;
        for (int r = 0; r < replicas; ++r) {
            auto& list = plan_.batches[s][static_cast<std::size_t>(group * replicas + r)];
            for (; batch < own.replica_ends[static_cast<std::size_t>(r) + 1]; ++batch) {
                MicroBatch& micro = list.emplace_back();
                for (; sample < own.ends[static_cast<std::size_t>(batch)]; ++sample)
                    micro.samples.push_back(
                        instance
                            .ids[static_cast<std::size_t>(own.samples[static_cast<std::size_t>(sample)])]);
            }
        }
    }
    for (const Executed& e : executed) {
        const Node& n = machine.node(e.node);
        plan_.lanes[static_cast<std::size_t>(rank_of(n, group))].push_back(
            {.section = n.section, .micro_batch = n.index, .phase = e.phase});
        plan_.makespan_s = std::max(plan_.makespan_s, e.end_s);
    }
    set_after(machine, executed, group);
}

int PlanBuilder::rank_of(const Node& node, int group) const {
    const SectionShape& shape = problem_.sections[static_cast<std::size_t>(node.section)];
    return shape.first_rank + group * (shape.replicas / groups_) + node.replica;
}

/// A micro-batch of a loss section may not overtake one whose float is less than it takes.
void PlanBuilder::set_after(const Machine& machine, const std::vector<Executed>& executed, int group) {
    const std::vector<double> free_s = floats(machine, executed);
    struct Waiting {
        double free_s = 0;
        int place = 0;
    };
    // Of each replica: of its micro-batches so far those of which no later one has less float.
    std::vector<std::vector<std::vector<Waiting>>> waiting;
    for (const SectionShape& s : machine.instance().sections)
        waiting.emplace_back(static_cast<std::size_t>(s.replicas));
    std::vector<int> places(static_cast<std::size_t>(machine.instance().lanes), 0);
    for (const Executed& e : executed) {
        const Node& n = machine.node(e.node);
        const int place = places[static_cast<std::size_t>(n.lane)]++;
        if (e.phase == Phase::backward || !machine.instance().shape(n.section).loss) continue;
        auto& earlier = waiting[static_cast<std::size_t>(n.section)][static_cast<std::size_t>(n.replica)];
        const auto above =
            std::lower_bound(earlier.begin(), earlier.end(), n.forward_s + n.backward_s,
                             [](const Waiting& w, double seconds) { return w.free_s < seconds; });
        Task& task =
            plan_.lanes[static_cast<std::size_t>(rank_of(n, group))][static_cast<std::size_t>(place)];
        if (above != earlier.begin()) task.after = (above - 1)->place;
        const double own_s = free_s[static_cast<std::size_t>(e.node)];
        while (!earlier.empty() && earlier.back().free_s >= own_s) earlier.pop_back();
        if (own_s < kNoLimit) earlier.push_back({own_s, place});
    }
}

StepPlan PlanBuilder::finish(std::int64_t step) {
    plan_.step = step;
    return std::move(plan_);
}

}  // namespace maestro::schedule
