#include "schedule/problem/bounds.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "schedule/problem/lane_bounds.hpp"
#include "schedule/problem/sample_paths.hpp"

namespace maestro::schedule {

namespace {

constexpr std::size_t kFewJobs = 32;     ///< with more the subset bound, whose time is cubic, is left out
constexpr double kMaxAssignments = 256;  ///< of jobs to machines that assignment_bound() goes through

/// Returns a lower bound of the time that the machines of a stage are idle at one end of the step, summed
/// over the machines. `plain`: the heads (or tails) of the stage's samples; `shared`: their tasks on a
/// section whose groups each serve `fanout` of these machines, one task at a time; `between`: what they
/// need from there to the stage.
double idle(const std::vector<double>& plain, std::vector<double> shared, std::vector<double> between,
            int machines, int fanout) {
    // Every machine has a first task, and no two machines the same: at best they are those with the smallest
    // heads.
    const double sum = idle_at_end(plain, machines);
    const auto count = std::min<std::size_t>(shared.size(), machines);
    if (count < shared.size()) std::nth_element(shared.begin(), shared.begin() + count, shared.end());
    shared.resize(count);
    std::sort(shared.begin(), shared.end());
    // The k-th machine of a group waits for k tasks: the first task counts for all, the last for one. The
    // sum of waiting times is smallest with the shortest tasks first on all groups (SPT rule; Conway,
    // Maxwell and Miller, "Theory of scheduling", 1967), as here, where any group may take any task.
    const int groups = machines / fanout;
    double queued = 0;
    for (std::size_t k = 0; k < count; ++k) queued += shared[k] * (fanout - static_cast<int>(k) / groups);
    return std::max(sum, queued + idle_at_end(std::move(between), machines));
}

/// The pairing bound: of k m + 1 jobs on m machines some machine processes k + 1, which are at best the k + 1
/// smallest of the largest k m + 1.
double pairing(std::vector<double> jobs, int machines) {
    std::sort(jobs.begin(), jobs.end(), std::greater<>());
    double bound = 0;
    std::vector<double> before(jobs.size() + 1, 0.0);
    std::partial_sum(jobs.begin(), jobs.end(), before.begin() + 1);
    const std::size_t m = machines;
    for (std::size_t k = 0; k * m < jobs.size(); ++k)
        bound = std::max(bound, before[k * m + 1] - before[k * m - k]);
    return bound;
}

/// For few jobs: every subset of jobs whose heads and tails exceed two limits needs its work, and on each
/// machine the time before its first job and after its last one (Carlier 1982).
double subset_bound(const std::vector<double>& jobs, const std::vector<double>& heads,
                    const std::vector<double>& tails, int machines) {
    if (jobs.size() > kFewJobs) return 0;
    double bound = 0;
    for (const double head : heads)
        for (const double tail : tails) {
            double work = 0;
            std::vector<double> first, last;
            for (std::size_t i = 0; i < jobs.size(); ++i) {
                if (heads[i] < head || tails[i] < tail) continue;
                work += jobs[i];
                first.push_back(heads[i]);
                last.push_back(tails[i]);
            }
            if (first.size() < static_cast<std::size_t>(machines)) continue;
            bound = std::max(bound, (work + idle_at_end(std::move(first), machines) +
                                     idle_at_end(std::move(last), machines)) /
                                        machines);
        }
    return bound;
}

/// For very few jobs: the smallest bound of all assignments to machines, of which each is bounded separately.
double assignment_bound(const std::vector<double>& jobs, const std::vector<double>& heads,
                        const std::vector<double>& tails, int machines) {
    const double assignments = std::pow(machines, static_cast<double>(jobs.size()));
    // With one machine there is one assignment, which subset_bound() covers.
    if (machines == 1 || assignments > kMaxAssignments) return 0;
    double least = std::numeric_limits<double>::infinity();
    for (int assignment = 0; assignment < static_cast<int>(assignments); ++assignment) {
        double longest = 0;
        // A machine that is no shorter than the best assignment rules this one out.
        for (int machine = 0; machine < machines && longest < least; ++machine) {
            std::vector<double> work, first, last;
            int rest = assignment;  // its digits to the base of `machines`
            for (std::size_t i = 0; i < jobs.size(); ++i, rest /= machines) {
                if (rest % machines != machine) continue;
                work.push_back(jobs[i]);
                first.push_back(heads[i]);
                last.push_back(tails[i]);
            }
            longest = std::max(longest, subset_bound(work, first, last, 1));
        }
        least = std::min(least, longest);
    }
    return least;
}

/// Returns the least time of all micro-batches of a stage, summed over the lanes. The parts of a lane work at
/// the same time. A micro-batch takes at least as long as its longest sample takes its part alone, and what
/// the parts do in common: the sum of the former over micro-batches is smallest if each has the longest
/// samples that are left.
double least_work(const Problem& problem, std::size_t stage) {
    const StageShape& shape = problem.stages[stage];
    double work = 0, common = 0;
    std::vector<double> alone;
    for (const SampleCost& sample : problem.samples) {
        if (!sample.stages[stage].active) continue;
        const double sample_s = total(problem, sample, stage);
        work += sample_s;
        common += sample.stages[stage].common * sample_s;
        alone.push_back(sample_s * (1 - sample.stages[stage].common));
    }
    if (shape.parts == 1) return work;
    std::sort(alone.begin(), alone.end(), std::greater<>());
    double longest = 0;
    for (std::size_t first = 0; first < alone.size(); first += shape.micro_batch) longest += alone[first];
    return std::max(work / shape.parts, longest + common / shape.parts);
}

/// Returns the problem with the times for which a sample at least occupies its part of a lane: what the part
/// does alone, and an equal part of what all of them do in common.
Problem of_single_parts(Problem problem) {
    for (SampleCost& sample : problem.samples)
        for (std::size_t s = 0; s < problem.stages.size(); ++s) {
            TaskCost& cost = sample.stages[s];
            const double share = 1 - cost.common * (1 - 1.0 / problem.stages[s].parts);
            cost.forward_s *= share;
            cost.backward_s *= share;
        }
    return problem;
}

/// Returns the least seconds of a machine that has most samples: as many as all have on average, rounded up,
/// in micro-batches that lack the others. `besides_s`: SamplePaths::besides().
double fullest_machine(std::vector<double> jobs, const StageShape& shape, double besides_s) {
    const std::size_t full = shape.micro_batch / shape.parts,
                      count =
                          (jobs.size() + shape.machines() - 1) / static_cast<std::size_t>(shape.machines());
    if (count == 0) return 0;
    std::nth_element(jobs.begin(), jobs.begin() + (count - 1), jobs.end());
    const double least_s = std::accumulate(jobs.begin(), jobs.begin() + count, 0.0);
    const std::size_t lacking = (full - count % full) % full;
    return least_s +
           (lacking > 0 ? static_cast<double>(lacking) * besides_s / static_cast<double>(full - 1) : 0);
}

/// `paths`: of the problem of_single_parts().
double stage_bound(const SamplePaths& paths, const Problem& whole, std::size_t stage) {
    const Problem& problem = paths.problem();
    const StageShape& shape = problem.stages[stage];
    std::vector<std::size_t> active;  // samples
    std::vector<double> jobs, heads_of, tails_of;
    for (std::size_t i = 0; i < problem.samples.size(); ++i) {
        if (!problem.samples[i].stages[stage].active) continue;
        active.push_back(i);
        jobs.push_back(total(problem, problem.samples[i], stage));
        heads_of.push_back(paths.head(i, stage));
        tails_of.push_back(paths.tail(i, stage));
    }
    if (jobs.empty()) return 0;
    const double besides_s = paths.besides(stage);
    // Some groups have no job then, so that only the longest job bounds the makespan.
    const int machines = shape.machines();
    if (jobs.size() < static_cast<std::size_t>(machines))
        return *std::max_element(jobs.begin(), jobs.end()) + besides_s;
    const double fullest_s = fullest_machine(jobs, shape, besides_s) +
                             *std::min_element(heads_of.begin(), heads_of.end()) +
                             *std::min_element(tails_of.begin(), tails_of.end());
    double first = idle_at_end(heads_of, machines), last = idle_at_end(tails_of, machines);
    // Edges by which samples enter the section, at this stage or before it.
    std::vector<EdgeShape> entries;
    for (const EdgeShape& e : problem.edges)
        if (e.to <= static_cast<int>(stage) && problem.stages[e.to].section == shape.section &&
            problem.stages[e.from].section != shape.section &&
            machines % problem.stages[e.from].machines() == 0)
            entries.push_back(e);
    // Machines wait for every upstream section, hence also for the mean of several sections with the same
    // fanout. With fan-in no two machines wait for the same group, and their heads tell all.
    const auto fanout_of = [&](const EdgeShape& e) { return machines / problem.stages[e.from].machines(); };
    std::map<int, int> entries_of;  // fanout -> entries
    for (const EdgeShape& e : entries) ++entries_of[fanout_of(e)];
    const auto waits = [&](const auto& counts, int fanout, double share) {
        std::vector<double> forwards(active.size(), 0.0), backwards(forwards), before(forwards),
            after(forwards);
        for (std::size_t k = 0; k < active.size(); ++k)
            for (const EdgeShape& e : entries) {
                if (!counts(e)) continue;
                const SampleCost& sample = problem.samples[active[k]];
                const TaskCost& cost = sample.stages[e.from];
                before[k] += share * paths.inner_head(active[k], e.to, stage);
                if (cost.active) forwards[k] += share * cost.forward_s;
                const auto tail_s = paths.inner_tail(active[k], e.to, stage);
                if (!tail_s) continue;
                after[k] += share * *tail_s;
                if (returns(problem, sample, e)) backwards[k] += share * cost.backward_s;
            }
        first = std::max(first, idle(heads_of, std::move(forwards), std::move(before), machines, fanout));
        last = std::max(last, idle(tails_of, std::move(backwards), std::move(after), machines, fanout));
    };
    for (const auto& [fanout, count] : entries_of) {
        const auto of_fanout = [&, fanout = fanout](const EdgeShape& e) { return fanout_of(e) == fanout; };
        waits(of_fanout, fanout, 1.0 / count);
        if (count == 1) continue;
        for (const EdgeShape& one : entries)
            if (of_fanout(one)) waits([&](const EdgeShape& e) { return &e == &one; }, fanout, 1.0);
    }
    // Each machine's time is at least its idle time before its first job, its work, and the time after its
    // last job. Summed over the machines that is at most their number times the makespan.
    const double work = std::accumulate(jobs.begin(), jobs.end(), 0.0);
    const double subset = std::max(subset_bound(jobs, heads_of, tails_of, machines),
                                   assignment_bound(jobs, heads_of, tails_of, machines));
    double even = std::max((work + first + last) / machines, subset);
    if (shape.parts > 1) {
        // Until its first sample and after its last one a part may work for others, but of each task at most
        // the largest common share is common work.
        double whole_work = 0, common = 0;
        for (const std::size_t i : active) {
            whole_work += total(whole, whole.samples[i], stage);
            common = std::max(common, whole.samples[i].stages[stage].common);
        }
        even = std::max(even, (whole_work + (1 - common) * (first + last)) / machines);
    }
    // Where the parts of a lane wait for each other, the lanes are the machines.
    const double lanes_s =
        least_work(whole, stage) + idle_at_end(heads_of, shape.groups) + idle_at_end(tails_of, shape.groups);
    return std::max({even, fullest_s, lanes_s / shape.groups, pairing(std::move(jobs), machines)});
}

/// Returns the least seconds that a lane spends with each stage, the mean over the lanes.
std::vector<double> lane_loads(const Problem& problem) {
    std::vector<double> load;
    for (std::size_t s = 0; s < problem.stages.size(); ++s)
        load.push_back(least_work(problem, s) / problem.stages[s].groups);
    return load;
}

/// Returns the load of a section on the lanes that these stages of it share.
double sum_of(const std::vector<double>& load, const std::vector<int>& stages) {
    double sum = 0;
    for (const int s : stages) sum += load[s];
    return sum;
}

/// Returns the stages of each section that share lanes, in their order.
std::vector<std::vector<int>> stages_of_lanes(const Problem& problem) {
    std::vector<std::vector<int>> stages_of;
    std::map<std::pair<int, int>, std::size_t> place;  // of a section and its first lane
    for (std::size_t s = 0; s < problem.stages.size(); ++s) {
        const StageShape& shape = problem.stages[s];
        const auto [at, added] = place.emplace(std::pair(shape.section, shape.first_lane), stages_of.size());
        if (added) stages_of.emplace_back();
        stages_of[at->second].push_back(static_cast<int>(s));
    }
    return stages_of;
}

}  // namespace

std::vector<double> loads(const Problem& problem) {
    std::vector<double> load(problem.stages.size(), 0.0);
    for (std::size_t s = 0; s < load.size(); ++s) {
        for (const auto& sample : problem.samples) load[s] += total(problem, sample, s);
        load[s] /= problem.stages[s].machines();
    }
    return load;
}

double lower_bound(const Problem& problem) {
    const Problem single = of_single_parts(problem);
    const SamplePaths paths(single);
    double bound = 0;
    for (std::size_t i = 0; i < problem.samples.size(); ++i) {
        const SampleCost& sample = single.samples[i];
        for (std::size_t s = 0; s < problem.stages.size(); ++s)
            if (sample.stages[s].active)
                bound = std::max(
                    bound, paths.head(i, s) + total(single, sample, s) + paths.besides(s) + paths.tail(i, s));
    }
    for (std::size_t s = 0; s < problem.stages.size(); ++s)
        bound = std::max(bound, stage_bound(paths, problem, s));
    bound = std::max(bound, lane_bound(paths, lane_loads(problem)));
    return problem.pipelined() ? std::max(bound, window_bound(paths)) : bound;
}

std::vector<std::vector<int>> longest_stages(const Problem& problem) {
    const std::vector<double> load = loads(problem);
    std::vector<std::vector<int>> longest(problem.sections());
    std::vector<double> most(problem.sections(), -1.0);
    for (auto& stages : stages_of_lanes(problem)) {
        const int section = problem.stages[stages.front()].section;
        const double sum = sum_of(load, stages);
        if (sum <= most[section]) continue;
        most[section] = sum;
        longest[section] = std::move(stages);
    }
    return longest;
}

int critical_stage(const Problem& problem) {
    const std::vector<double> load = loads(problem);
    double most = -1;
    int critical = 0;
    for (const auto& stages : longest_stages(problem)) {
        const double sum = sum_of(load, stages);
        if (sum <= most) continue;
        most = sum;
        critical = stages.front();
    }
    return critical;
}

}  // namespace maestro::schedule
