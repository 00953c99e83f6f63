#include "schedule/policies.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.hpp"
#include "schedule/simulate.hpp"

namespace maestro::schedule {

namespace {

constexpr int kForwardFirst = std::numeric_limits<int>::max();

double total(const TaskCost& cost) {
    return cost.active ? cost.forward_s + cost.backward_s : 0;
}

/// Samples of every replica of the anchor section, in their order; the other sections follow from it.
using Assignment = std::vector<std::vector<const SampleCost*>>;

/// The section that all assignments are made for: the loss section with the most replicas.
int anchor_section(const Problem& problem) {
    int anchor = -1;
    for (std::size_t s = 0; s < problem.sections.size(); ++s)
        if (problem.sections[s].loss &&
            (anchor < 0 ||
             problem.sections[s].replicas > problem.sections[static_cast<std::size_t>(anchor)].replicas))
            anchor = static_cast<int>(s);
    MAESTRO_CHECK(anchor >= 0, "no section computes a loss");
    return anchor;
}

/// Does the sample have work in a section other than the anchor that some samples skip? Those must come from
/// upstream.
bool needs_upstream(const SampleCost& sample, int anchor) {
    for (std::size_t s = 0; s < sample.sections.size(); ++s)
        if (static_cast<int>(s) != anchor && sample.sections[s].active) return true;
    return false;
}

double upstream_cost(const SampleCost& sample, int anchor) {
    double sum = 0;
    for (std::size_t s = 0; s < sample.sections.size(); ++s)
        if (static_cast<int>(s) != anchor) sum += total(sample.sections[s]);
    return sum;
}

/// Cuts a list into micro-batches; samples that need no upstream do not share one with those that do if
/// `separate`.
std::vector<MicroBatch> cut(const std::vector<const SampleCost*>& list, int section, int size, int anchor,
                            bool separate) {
    std::vector<MicroBatch> batches;
    bool last = false;
    for (const SampleCost* sample : list) {
        if (!sample->sections[static_cast<std::size_t>(section)].active) continue;
        const bool needs = needs_upstream(*sample, anchor);
        if (batches.empty() || static_cast<int>(batches.back().samples.size()) >= size ||
            (separate && needs != last))
            batches.emplace_back();
        batches.back().samples.push_back(sample->id);
        last = needs;
    }
    return batches;
}

/// Micro-batches of all sections. Replica a of the anchor implies replica a * dp / dp(anchor) of every
/// section; a section takes the samples of its anchor replicas in turn, `turn` at a time, so that all of them
/// are fed.
void compose(const Problem& problem, const Assignment& assignment, int anchor, bool separate,
             std::size_t turn, StepPlan& plan) {
    const auto anchors = static_cast<int>(assignment.size());
    plan.batches.assign(problem.sections.size(), {});
    for (std::size_t s = 0; s < problem.sections.size(); ++s) {
        const SectionShape& shape = problem.sections[s];
        for (int r = 0; r < shape.replicas; ++r) {
            std::vector<const std::vector<const SampleCost*>*> sources;
            std::vector<const SampleCost*> part;
            if (shape.replicas >= anchors) {  // as many as the anchor; more never happens below it
                if (r < anchors) sources.push_back(&assignment[static_cast<std::size_t>(r)]);
            } else {
                for (int a = 0; a < anchors; ++a)
                    if (a * shape.replicas / anchors == r)
                        sources.push_back(&assignment[static_cast<std::size_t>(a)]);
            }
            for (std::size_t at = 0, left = 1; left > 0; at += turn) {
                left = 0;
                for (const auto* source : sources) {
                    for (std::size_t i = at; i < std::min(at + turn, source->size()); ++i)
                        part.push_back((*source)[i]);
                    if (at + turn < source->size()) ++left;
                }
            }
            plan.batches[s].push_back(
                cut(part, static_cast<int>(s), shape.micro_batch, anchor, separate && shape.loss));
        }
    }
}

std::vector<const SampleCost*> pointers(const Problem& problem) {
    std::vector<const SampleCost*> list;
    for (const auto& s : problem.samples) list.push_back(&s);
    return list;
}

template <class Key>
void sort_descending(std::vector<const SampleCost*>& list, Key key) {
    std::stable_sort(list.begin(), list.end(),
                     [&](const auto* a, const auto* b) { return key(*a) > key(*b); });
}

/// Each sample of the list to the least loaded of the replicas.
Assignment spread(const std::vector<const SampleCost*>& list, int replicas, int anchor) {
    Assignment assignment(static_cast<std::size_t>(replicas));
    std::vector<double> load(static_cast<std::size_t>(replicas), 0.0);
    for (const SampleCost* sample : list) {
        const auto least =
            static_cast<std::size_t>(std::min_element(load.begin(), load.end()) - load.begin());
        assignment[least].push_back(sample);
        load[least] += total(sample->sections[static_cast<std::size_t>(anchor)]);
    }
    return assignment;
}

/// Samples with upstream work go to the group (replicas fed by the same upstream replicas) with the least of
/// it, there to the least loaded replica; the rest levels the replicas.
Assignment spread_by_groups(const Problem& problem, int anchor) {
    const int replicas = problem.sections[static_cast<std::size_t>(anchor)].replicas;
    int groups = replicas;
    for (const auto& s : problem.sections) groups = std::gcd(groups, s.replicas);
    const int per_group = replicas / groups;
    std::vector<const SampleCost*> heavy, light;
    for (const auto& s : problem.samples) (needs_upstream(s, anchor) ? heavy : light).push_back(&s);
    const auto own = [&](const SampleCost& s) { return total(s.sections[static_cast<std::size_t>(anchor)]); };
    sort_descending(heavy, [&](const SampleCost& s) { return upstream_cost(s, anchor) + own(s); });
    sort_descending(light, own);
    Assignment assignment(static_cast<std::size_t>(replicas));
    std::vector<double> load(static_cast<std::size_t>(replicas), 0.0),
        upstream(static_cast<std::size_t>(groups), 0.0);
    for (const SampleCost* sample : heavy) {
        const auto group = std::min_element(upstream.begin(), upstream.end()) - upstream.begin();
        const auto first = load.begin() + group * per_group;
        const auto least =
            static_cast<std::size_t>(std::min_element(first, first + per_group) - load.begin());
        assignment[least].push_back(sample);
        load[least] += own(*sample);
        upstream[static_cast<std::size_t>(group)] += upstream_cost(*sample, anchor);
    }
    for (const SampleCost* sample : light) {
        const auto least =
            static_cast<std::size_t>(std::min_element(load.begin(), load.end()) - load.begin());
        assignment[least].push_back(sample);
        load[least] += own(*sample);
    }
    return assignment;
}

StepPlan finish(const Problem& problem, StepPlan plan, std::int64_t step) {
    plan.step = step;
    plan.lower_bound_s = lower_bound(problem);
    plan.critical_section = critical_section(problem);
    return plan;
}

[[noreturn]] void refuse_windows(const Problem& problem, std::string_view policy) {
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

}  // namespace

double lower_bound(const Problem& problem) {
    double bound = 0;
    std::vector<double> rank_load(static_cast<std::size_t>(problem.world), 0.0);
    for (std::size_t s = 0; s < problem.sections.size(); ++s) {
        double load = 0;
        for (const auto& sample : problem.samples) load += total(sample.sections[s]);
        for (int r = 0; r < problem.sections[s].replicas; ++r)
            rank_load[static_cast<std::size_t>(problem.sections[s].first_rank + r)] +=
                load / problem.sections[s].replicas;
    }
    // Colocated sections share their ranks' time; the mean over the ranks of a section bounds its longest.
    for (const auto& shape : problem.sections) {
        const auto first = rank_load.begin() + shape.first_rank;
        bound = std::max(bound, std::accumulate(first, first + shape.replicas, 0.0) / shape.replicas);
    }
    for (const auto& sample : problem.samples) {
        std::vector<double> chain(problem.sections.size(), 0.0);
        for (std::size_t pass = 0; pass < problem.sections.size(); ++pass)
            for (std::size_t s = 0; s < problem.sections.size(); ++s) {
                double before = 0;
                for (const EdgeShape& e : problem.edges)
                    if (e.to == static_cast<int>(s))
                        before = std::max(before, chain[static_cast<std::size_t>(e.from)]);
                chain[s] = before + total(sample.sections[s]);
            }
        bound = std::max(bound, *std::max_element(chain.begin(), chain.end()));
    }
    return bound;
}

int critical_section(const Problem& problem) {
    int critical = 0;
    double most = -1;
    for (std::size_t s = 0; s < problem.sections.size(); ++s) {
        double load = 0;
        for (const auto& sample : problem.samples) load += total(sample.sections[s]);
        load /= problem.sections[s].replicas;
        if (load > most) {
            most = load;
            critical = static_cast<int>(s);
        }
    }
    return critical;
}

StepPlan plan_wavefront(const Problem& problem, std::int64_t step) {
    const int anchor = anchor_section(problem);
    const auto turn =
        static_cast<std::size_t>(problem.sections[static_cast<std::size_t>(anchor)].micro_batch);
    const Assignment spread = spread_by_groups(problem, anchor);
    StepPlan best;
    best.makespan_s = std::numeric_limits<double>::infinity();
    bool found = false;
    for (const bool small_first : {true, false}) {
        Assignment ordered = spread;
        for (auto& list : ordered) {
            const auto text = std::stable_partition(
                list.begin(), list.end(), [&](const SampleCost* s) { return needs_upstream(*s, anchor); });
            if (small_first) std::reverse(list.begin(), text);  // a short head start for the upstream
        }
        StepPlan plan;
        compose(problem, ordered, anchor, true, turn, plan);
        for (const int depth : {1, 2, 3, kForwardFirst}) {
            StepPlan candidate = plan;
            if (!dispatch(problem, {.depth = depth}, candidate) || candidate.makespan_s >= best.makespan_s)
                continue;
            best = std::move(candidate);
            found = true;
        }
    }
    if (!found) refuse_windows(problem, "wavefront");
    return finish(problem, std::move(best), step);
}

StepPlan plan_fifo(const Problem& problem, std::int64_t step) {
    const int anchor = anchor_section(problem);
    const auto replicas =
        static_cast<std::size_t>(problem.sections[static_cast<std::size_t>(anchor)].replicas);
    Assignment assignment(replicas);
    for (std::size_t i = 0; i < problem.samples.size(); ++i)
        assignment[i % replicas].push_back(&problem.samples[i]);
    StepPlan plan;
    compose(problem, assignment, anchor, false, 1, plan);
    if (!dispatch(problem, {.depth = kForwardFirst}, plan)) refuse_windows(problem, "fifo");
    return finish(problem, std::move(plan), step);
}

StepPlan plan_lpt(const Problem& problem, std::int64_t step) {
    const int anchor = anchor_section(problem);
    auto list = pointers(problem);
    sort_descending(list,
                    [&](const SampleCost& s) { return total(s.sections[static_cast<std::size_t>(anchor)]); });
    StepPlan plan;
    compose(problem, spread(list, problem.sections[static_cast<std::size_t>(anchor)].replicas, anchor),
            anchor, false, 1, plan);
    if (!dispatch(problem, {.depth = kForwardFirst}, plan)) refuse_windows(problem, "lpt");
    return finish(problem, std::move(plan), step);
}

StepPlan make_plan(std::string_view policy, const Problem& problem, std::int64_t step) {
    if (policy == "wavefront") return plan_wavefront(problem, step);
    if (policy == "fifo") return plan_fifo(problem, step);
    MAESTRO_CHECK(policy == "lpt", "no policy {}", policy);
    return plan_lpt(problem, step);
}

}  // namespace maestro::schedule
