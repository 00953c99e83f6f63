#include "schedule/plan_builder.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"
#include "schedule/bounds.hpp"

namespace maestro::schedule {

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
        const SectionShape& shape = problem_.sections[static_cast<std::size_t>(n.section)];
        const int rank = shape.first_rank + group * (shape.replicas / groups_) + n.replica;
        plan_.lanes[static_cast<std::size_t>(rank)].push_back({n.section, n.index, e.phase});
        plan_.makespan_s = std::max(plan_.makespan_s, e.end_s);
    }
}

StepPlan PlanBuilder::finish(std::int64_t step) {
    plan_.step = step;
    return std::move(plan_);
}

void refuse_windows(const Problem& problem, std::string_view policy) {
    std::string windows;
    for (std::size_t s = 0; s < problem.sections.size(); ++s)
        windows += fmt::format("{}colour {}: window {}, micro_batch {}", s ? "; " : "", s,
                               problem.sections[s].window, problem.sections[s].micro_batch);
    throw Error(
        ExitCode::bad_deck,
        fmt::format(
            "policy {} cannot order the micro-batches within the windows ({}); raise the window of the "
            "upstream section, or its micro_batch",
            policy, windows));
}

}  // namespace maestro::schedule
