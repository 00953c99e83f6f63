#include "unit/schedule/plan_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "schedule/execution/simulate.hpp"

namespace maestro::schedule_test {

namespace {

using schedule::MicroBatch;
using schedule::Problem;
using schedule::SampleCost;
using schedule::StepPlan;
using schedule::Task;

using Wrong = std::vector<std::string>;
using GroupOf = std::vector<std::map<std::int64_t, int>>;  ///< [section], by sample

/// No part of a lane has more than its share of a full micro-batch.
void check_parts(const schedule::StageShape& shape, const MicroBatch& batch, Wrong& wrong) {
    if (batch.part_ends.size() != (shape.parts > 1 ? static_cast<std::size_t>(shape.parts) : 0)) {
        wrong.push_back(fmt::format("{} parts, {} expected", batch.part_ends.size(), shape.parts));
        return;
    }
    for (int part = 0; part < shape.parts; ++part)
        if (static_cast<int>(batch.of_part(part).size()) * shape.parts > shape.micro_batch)
            wrong.push_back(fmt::format("a part has {} samples", batch.of_part(part).size()));
}

/// Every active sample once per section, in micro-batches of an allowed size.
GroupOf check_samples(const Problem& problem, const StepPlan& plan, Wrong& wrong) {
    GroupOf group_of(problem.stages.size());
    for (std::size_t s = 0; s < problem.stages.size(); ++s) {
        const auto& batches = plan.batches[static_cast<std::size_t>(problem.stages[s].section)];
        for (std::size_t r = 0; r < batches.size(); ++r)
            for (const auto& batch : batches[r]) {
                if (batch.samples.empty() ||
                    static_cast<int>(batch.samples.size()) > problem.stages[s].micro_batch)
                    wrong.push_back(
                        fmt::format("section {}: a micro-batch of {} samples", s, batch.samples.size()));
                check_parts(problem.stages[s], batch, wrong);
                for (const auto sample : batch.samples)
                    if (!group_of[s].emplace(sample, static_cast<int>(r)).second)
                        wrong.push_back(fmt::format("section {}: sample {} twice", s, sample));
            }
        std::size_t active = 0;
        for (const auto& sample : problem.samples) {
            if (!sample.stages[s].active) continue;
            ++active;
            if (!group_of[s].contains(sample.id))
                wrong.push_back(fmt::format("section {}: sample {} is missing", s, sample.id));
        }
        if (active != group_of[s].size())
            wrong.push_back(fmt::format("section {}: {} samples, {} active", s, group_of[s].size(), active));
    }
    return group_of;
}

/// Samples go from a group to those that it serves.
void check_edges(const Problem& problem, const GroupOf& group_of, Wrong& wrong) {
    for (const auto& e : problem.edges) {
        for (const auto& [sample, up] : group_of[e.from])
            if (const auto down = group_of[e.to].find(sample);
                down != group_of[e.to].end() && !serves(problem, e, up, down->second))
                wrong.push_back(fmt::format("edge {} -> {}: sample {} goes from group {} to {}", e.from, e.to,
                                            sample, up, down->second));
    }
}

std::size_t expected_tasks(const Problem& problem, const StepPlan& plan) {
    std::map<std::int64_t, const SampleCost*> costs;
    for (const SampleCost& sample : problem.samples) costs.emplace(sample.id, &sample);
    std::size_t expected = 0;
    for (std::size_t s = 0; s < problem.stages.size(); ++s) {
        const auto returns = [&](std::int64_t id) {
            const auto at = costs.find(id);
            return at != costs.end() && problem.runs_backward(*at->second, s);
        };
        for (const auto& group : plan.batches[static_cast<std::size_t>(problem.stages[s].section)])
            for (const MicroBatch& batch : group)
                expected += std::any_of(batch.samples.begin(), batch.samples.end(), returns) ? 2 : 1;
    }
    return expected;
}

/// Every task of a micro-batch once, on the lane of its group.
void check_tasks(const Problem& problem, const StepPlan& plan, Wrong& wrong) {
    std::set<std::tuple<std::size_t, int, int, int>> tasks;
    for (std::size_t lane = 0; lane < plan.agendas.size(); ++lane)
        for (const Task& t : plan.agendas[lane]) {
            const auto& shape = problem.stages[static_cast<std::size_t>(t.stage)];
            const int group = shape.group_on(static_cast<int>(lane));
            const auto& batches = plan.batches[static_cast<std::size_t>(shape.section)];
            if (static_cast<int>(lane) != shape.lane(group) || group < 0 ||
                group >= static_cast<int>(batches.size()) ||
                t.micro_batch >= static_cast<int>(batches[group].size())) {
                wrong.push_back(
                    fmt::format("lane {}: no micro-batch {} of section {}", lane, t.micro_batch, t.stage));
                return;
            }
            if (!tasks.insert({lane, t.stage, t.micro_batch, static_cast<int>(t.phase)}).second)
                wrong.push_back(
                    fmt::format("lane {}: section {}, micro-batch {} twice", lane, t.stage, t.micro_batch));
        }
    if (const std::size_t expected = expected_tasks(problem, plan); tasks.size() != expected)
        wrong.push_back(fmt::format("{} tasks, {} expected", tasks.size(), expected));
}

}  // namespace

bool serves(const Problem& problem, const schedule::EdgeShape& edge, int up, int down) {
    const int producers = problem.stages[edge.from].groups, consumers = problem.stages[edge.to].groups;
    return consumers >= producers ? down / (consumers / producers) == up
                                  : up / (producers / consumers) == down;
}

std::vector<std::string> check_plan(const Problem& problem, const StepPlan& plan) {
    if (static_cast<int>(plan.batches.size()) != problem.sections()) return {"a plan of other sections"};
    for (std::size_t s = 0; s < problem.stages.size(); ++s)
        if (static_cast<int>(plan.batches[static_cast<std::size_t>(problem.stages[s].section)].size()) !=
            problem.stages[s].groups)
            return {fmt::format("section {}: wrong number of groups", s)};
    if (static_cast<int>(plan.agendas.size()) != problem.lanes) return {"an agenda for every lane is needed"};
    Wrong wrong;
    check_edges(problem, check_samples(problem, plan, wrong), wrong);
    check_tasks(problem, plan, wrong);
    if (wrong.empty() && simulate(problem, plan).stuck) wrong.push_back("the lanes wait for each other");
    return wrong;
}

}  // namespace maestro::schedule_test
