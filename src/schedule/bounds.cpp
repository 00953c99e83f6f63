#include "schedule/bounds.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <span>

namespace maestro::schedule {

namespace {

constexpr std::size_t kFewJobs = 32;     ///< with more the subset bound, whose time is cubic, is left out
constexpr double kMaxAssignments = 256;  ///< of jobs to machines that assignment_bound() goes through

/// Returns whether the sample's backward upstream waits for its backward downstream.
bool returns(const Problem& problem, const SampleCost& sample, const EdgeShape& e) {
    return e.gradient && problem.runs_backward(sample, e.from) && problem.runs_backward(sample, e.to);
}

double total(const Problem& problem, const SampleCost& sample, std::size_t stage) {
    const TaskCost& cost = sample.stages[stage];
    if (!cost.active) return 0;
    return cost.forward_s + (problem.stages[stage].backward ? cost.backward_s : 0);
}

/// Sets the longest path of a sample's tasks from a source to the start of each stage, seconds: its release
/// time there. `head` is all 0 before.
void set_heads(const Problem& problem, const SampleCost& sample, std::span<double> head) {
    // Edges come in any order; no path has more edges than there are stages (Bellman and Ford).
    for (std::size_t pass = 0; pass < problem.stages.size(); ++pass)
        for (const EdgeShape& e : problem.edges) {
            const int up = e.from, down = e.to;
            if (!sample.stages[up].active) continue;
            const double arrival =
                head[up] + sample.stages[up].forward_s + e.delay_s(sample.stages[up].transfer_s);
            head[down] = std::max(head[down], arrival);
        }
}

/// Sets the longest path from the end of each stage to the end of the step: the delivery time. `tail` is
/// all 0 before.
void set_tails(const Problem& problem, const SampleCost& sample, std::span<double> tail) {
    for (std::size_t pass = 0; pass < problem.stages.size(); ++pass)
        for (const EdgeShape& e : problem.edges) {
            const int up = e.from, down = e.to;
            if (!returns(problem, sample, e)) continue;
            const double rest =
                tail[up] + sample.stages[up].backward_s + e.delay_s(sample.stages[up].transfer_s);
            tail[down] = std::max(tail[down], rest);
        }
}

/// Returns a lower bound of the time that the machines of a section are idle at one end of the step, summed
/// over the machines. `plain`: the heads (or tails) of the section's samples; `shared`: their tasks on a
/// section whose replicas each serve `fanout` of these machines, one task at a time.
double idle(std::vector<double> plain, std::vector<double> shared, int machines, int fanout) {
    const auto count = std::min<std::size_t>(plain.size(), machines);
    // Every machine has a first task, and no two machines the same: at best they are those with the smallest
    // heads.
    const auto smallest = [&](std::vector<double>& values) {
        if (count < values.size()) std::nth_element(values.begin(), values.begin() + count, values.end());
        values.resize(count);
        std::sort(values.begin(), values.end());
    };
    smallest(plain);
    double sum = std::accumulate(plain.begin(), plain.end(), 0.0);
    if (shared.empty()) return sum;
    smallest(shared);
    // The k-th machine of a replica waits for k tasks: the first task counts for all, the last for one. The
    // sum of waiting times is smallest with the shortest tasks first on all replicas (SPT rule; Conway,
    // Maxwell and Miller, "Theory of scheduling", 1967), as here, where any replica may take any task.
    const int groups = machines / fanout;
    double queued = 0;
    for (std::size_t k = 0; k < count; ++k) queued += shared[k] * (fanout - static_cast<int>(k) / groups);
    return std::max(sum, queued);
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
            bound = std::max(bound, (work + idle(std::move(first), {}, machines, 1) +
                                     idle(std::move(last), {}, machines, 1)) /
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

/// `head`, `tail`: [sample * stages + stage].
double stage_bound(const Problem& problem, std::size_t stage, const std::vector<double>& head,
                   const std::vector<double>& tail) {
    const StageShape& shape = problem.stages[stage];
    std::vector<double> jobs, heads_of, tails_of;
    for (std::size_t i = 0; i < problem.samples.size(); ++i) {
        if (!problem.samples[i].stages[stage].active) continue;
        jobs.push_back(total(problem, problem.samples[i], stage));
        heads_of.push_back(head[i * problem.stages.size() + stage]);
        tails_of.push_back(tail[i * problem.stages.size() + stage]);
    }
    // Some replicas have no job then, so that only the longest job bounds the makespan.
    if (jobs.size() < static_cast<std::size_t>(shape.replicas))
        return jobs.empty() ? 0 : *std::max_element(jobs.begin(), jobs.end());
    double first = idle(heads_of, {}, shape.replicas, 1), last = idle(tails_of, {}, shape.replicas, 1);
    // Machines wait for every upstream section, hence also for the mean of several sections with the same
    // fanout.
    std::map<int, int> stages_of;  // fanout -> upstream stages
    for (const EdgeShape& e : problem.edges)
        if (e.to == static_cast<int>(stage)) ++stages_of[shape.replicas / problem.stages[e.from].replicas];
    const auto waits = [&](const auto& counts, int fanout, double share) {
        std::vector<double> forwards, backwards;
        for (const SampleCost& sample : problem.samples) {
            if (!sample.stages[stage].active) continue;
            forwards.push_back(0);
            backwards.push_back(0);
            for (const EdgeShape& e : problem.edges) {
                const TaskCost& cost = sample.stages[e.from];
                if (!cost.active || !counts(e)) continue;
                forwards.back() += share * cost.forward_s;
                if (returns(problem, sample, e)) backwards.back() += share * cost.backward_s;
            }
        }
        first = std::max(first, idle(heads_of, forwards, shape.replicas, fanout));
        last = std::max(last, idle(tails_of, backwards, shape.replicas, fanout));
    };
    for (const auto& [fanout, count] : stages_of) {
        const auto of_fanout = [&, fanout = fanout](const EdgeShape& e) {
            return e.to == static_cast<int>(stage) &&
                   shape.replicas / problem.stages[e.from].replicas == fanout;
        };
        waits(of_fanout, fanout, 1.0 / count);
        if (count == 1) continue;
        for (const EdgeShape& one : problem.edges)
            if (of_fanout(one)) waits([&](const EdgeShape& e) { return &e == &one; }, fanout, 1.0);
    }
    // Each machine's time is at least its idle time before its first job, its work, and the time after its
    // last job. Summed over the machines that is at most their number times the makespan.
    const double work = std::accumulate(jobs.begin(), jobs.end(), 0.0);
    const double subset = std::max(subset_bound(jobs, heads_of, tails_of, shape.replicas),
                                   assignment_bound(jobs, heads_of, tails_of, shape.replicas));
    return std::max(
        subset, std::max((work + first + last) / shape.replicas, pairing(std::move(jobs), shape.replicas)));
}

}  // namespace

std::vector<double> loads(const Problem& problem) {
    std::vector<double> load(problem.stages.size(), 0.0);
    for (std::size_t s = 0; s < load.size(); ++s) {
        for (const auto& sample : problem.samples) load[s] += total(problem, sample, s);
        load[s] /= problem.stages[s].replicas;
    }
    return load;
}

double lower_bound(const Problem& problem) {
    const std::size_t count = problem.stages.size();
    std::vector<double> head(problem.samples.size() * count, 0.0), tail = head;
    double bound = 0;
    for (std::size_t i = 0; i < problem.samples.size(); ++i) {
        const SampleCost& sample = problem.samples[i];
        const std::span before = std::span(head).subspan(i * count, count),
                        after = std::span(tail).subspan(i * count, count);
        set_heads(problem, sample, before);
        set_tails(problem, sample, after);
        for (std::size_t s = 0; s < count; ++s)
            if (sample.stages[s].active)
                bound = std::max(bound, before[s] + total(problem, sample, s) + after[s]);
    }
    for (std::size_t s = 0; s < count; ++s) bound = std::max(bound, stage_bound(problem, s, head, tail));
    // Sections that share lanes share their time; the mean over a section's lanes bounds their longest.
    const std::vector<double> load = loads(problem);
    std::vector<double> lane_load(problem.lanes, 0.0);
    for (std::size_t s = 0; s < load.size(); ++s)
        for (int r = 0; r < problem.stages[s].replicas; ++r) lane_load[problem.stages[s].lane(r)] += load[s];
    for (const StageShape& shape : problem.stages) {
        double sum = 0;
        for (int r = 0; r < shape.replicas; ++r) sum += lane_load[shape.lane(r)];
        bound = std::max(bound, sum / shape.replicas);
    }
    return bound;
}

std::vector<int> longest_stages(const Problem& problem) {
    const std::vector<double> load = loads(problem);
    std::vector<int> longest(problem.sections(), -1);
    for (int s = 0; s < static_cast<int>(load.size()); ++s) {
        int& of_section = longest[problem.stages[s].section];
        if (of_section < 0 || load[s] > load[of_section]) of_section = s;
    }
    return longest;
}

int critical_stage(const Problem& problem) {
    const std::vector<double> load = loads(problem);
    return static_cast<int>(std::max_element(load.begin(), load.end()) - load.begin());
}

}  // namespace maestro::schedule
