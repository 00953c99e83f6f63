#include "schedule/plan_builder.hpp"

#include <algorithm>

#include "schedule/bounds.hpp"

namespace maestro::schedule {

namespace {

constexpr int kCovers = 2;  ///< micro-batches of a rank that are started in turn: enough to cover a backward

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
        plan_.lanes[static_cast<std::size_t>(rank_of(n, group))].push_back({n.section, n.index, e.phase});
        plan_.makespan_s = std::max(plan_.makespan_s, e.end_s);
    }
    keep_turns(machine, executed, group);
}

int PlanBuilder::rank_of(const Node& node, int group) const {
    const SectionShape& shape = problem_.sections[static_cast<std::size_t>(node.section)];
    return shape.first_rank + group * (shape.replicas / groups_) + node.replica;
}

/// Of a replica's micro-batches after the last that has work upstream, where backwards there follow.
void PlanBuilder::keep_turns(const Machine& machine, const std::vector<Executed>& executed, int group) {
    std::vector<bool> covers(problem_.sections.size(), false);
    for (const EdgeShape& e : problem_.edges)
        if (e.gradient) covers[static_cast<std::size_t>(e.to)] = true;
    const auto lanes = static_cast<std::size_t>(machine.instance().lanes);
    std::vector<int> left(lanes, kCovers);
    std::vector<std::size_t> later(lanes, 0);  // tasks of the lane that follow
    for (auto e = executed.rbegin(); e != executed.rend(); ++e) {
        const Node& n = machine.node(e->node);
        const auto lane = static_cast<std::size_t>(n.lane), section = static_cast<std::size_t>(n.section);
        std::vector<Task>& tasks = plan_.lanes[static_cast<std::size_t>(rank_of(n, group))];
        Task& task = tasks[tasks.size() - ++later[lane]];
        if (e->phase == Phase::backward || !covers[section] || !problem_.sections[section].loss) continue;
        if (n.up_first < n.up_last) left[lane] = 0;
        if (left[lane] == 0) continue;
        --left[lane];
        task.in_turn = true;
    }
}

StepPlan PlanBuilder::finish(std::int64_t step) {
    plan_.step = step;
    return std::move(plan_);
}

}  // namespace maestro::schedule
