#include "schedule/problem/instance.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "base/check.hpp"

namespace maestro::schedule {

/// A sample's group of the anchor decides its groups in sections with fewer of them. Of several such
/// stages the first is the anchor: all callers find the same one.
int anchor_stage(const Problem& problem) {
    int anchor = -1;
    for (std::size_t s = 0; s < problem.stages.size(); ++s)
        if (problem.stages[s].loss &&
            (anchor < 0 || problem.stages[s].groups > problem.stages[anchor].groups))
            anchor = static_cast<int>(s);
    MAESTRO_CHECK(anchor >= 0, "no stage computes a loss");
    return anchor;
}

/// An edge joins the groups of two sections in proportion: if each section's groups are cut into g equal
/// ranges, no edge leaves its range. All sections can be cut so if g divides all numbers of groups.
int sub_problems_of(const Problem& problem) {
    int sub_problems = 0;
    for (const auto& s : problem.stages) sub_problems = std::gcd(sub_problems, s.groups);
    return sub_problems;
}

namespace {

/// Sets per group of the anchor. If it takes more for every group to be in equally many sets, some
/// groups are in one set more than others.
constexpr std::int64_t kMostSets = 64;

/// Any multiple of the number of the anchor's groups is correct that leaves no group without a set: because
/// the groups of two sections that an edge joins divide each other, two of a set always serve each other.
int count_sets(const std::vector<StageShape>& stages, int anchor_groups) {
    std::int64_t even = 1;
    int most = 1;
    for (const StageShape& s : stages) {
        most = std::max(most, s.groups);
        if (even <= kMostSets * anchor_groups) even = std::lcm(even, std::int64_t{s.groups});
    }
    if (even <= kMostSets * anchor_groups) return static_cast<int>(even);
    return (most + anchor_groups - 1) / anchor_groups * anchor_groups;
}

}  // namespace

SetAssignment::SetAssignment(const Instance& instance) : instance_(instance) {
    for (int s = 0; s < instance.sections(); ++s) {
        const int groups = instance.shape(instance.first_stage(s)).groups;
        if (instance.shape(instance.anchor).groups % groups == 0) continue;
        sections_.push_back(s);
        load_.emplace_back(groups, 0.0);
    }
}

/// Returns seconds of a lane, [of sections_].
std::vector<double> SetAssignment::work_of(int sample) const {
    std::vector<double> work_s(sections_.size(), 0.0);
    for (std::size_t k = 0; k < sections_.size(); ++k)
        for (int s = instance_.first_stage(sections_[k]); s <= instance_.last_stage(sections_[k]); ++s)
            work_s[k] +=
                instance_.total(s, sample) / instance_.shape(s).lane_stride / instance_.shape(s).parts;
    return work_s;
}

void SetAssignment::add_to(int set, int sample) {
    const std::vector<double> work_s = work_of(sample);
    for (std::size_t k = 0; k < sections_.size(); ++k) load(k, set) += work_s[k];
}

int SetAssignment::add(int sample, int anchor_group) {
    const IndexRange sets = instance_.sets_of(anchor_group);
    if (sections_.empty()) return sets.first;
    const std::vector<double> work_s = work_of(sample);
    int best = sets.first;
    double least = std::numeric_limits<double>::infinity();
    for (int set = sets.first; set < sets.last; ++set) {
        double fullest = 0;
        for (std::size_t k = 0; k < sections_.size(); ++k)
            if (work_s[k] > 0) fullest = std::max(fullest, load(k, set) + work_s[k]);
        if (fullest >= least) continue;
        least = fullest;
        best = set;
    }
    for (std::size_t k = 0; k < sections_.size(); ++k) load(k, best) += work_s[k];
    return best;
}

int Instance::first_stage(int section) const {
    int first = 0;
    while (section_of(first) != section) ++first;
    return first;
}

int Instance::last_stage(int section) const {
    int last = static_cast<int>(stages.size()) - 1;
    while (section_of(last) != section) --last;
    return last;
}

std::vector<int> bottleneck_of(const Instance& instance, int section) {
    std::map<int, std::vector<int>> on_lane;  // first lane -> stages
    std::map<int, double> work_s;
    const int first = instance.first_stage(section), last = instance.last_stage(section);
    int longest = instance.shape(first).first_lane;
    for (int s = first; s <= last; ++s) {
        const int lane = instance.shape(s).first_lane;
        on_lane[lane].push_back(s);
        for (int i = 0; i < instance.samples; ++i) work_s[lane] += instance.total(s, i);
    }
    for (const auto& [lane, seconds] : work_s)
        if (seconds > work_s[longest]) longest = lane;
    return on_lane[longest];
}

Instance part(const Problem& problem, int sub_problems, const std::vector<int>& samples) {
    Instance instance;
    instance.stages = problem.stages;
    instance.edges = problem.edges;
    instance.anchor = anchor_stage(problem);
    instance.entry = instance.first_stage(instance.section_of(instance.anchor));
    instance.zero_is_none = problem.zero_is_none;
    instance.samples = static_cast<int>(samples.size());
    std::map<int, int> first;  // lane of a section in the problem -> in the instance
    int of_section = 0;        // its first lane in the problem
    for (std::size_t s = 0; s < instance.stages.size(); ++s) {
        StageShape& shape = instance.stages[s];
        shape.groups /= sub_problems;
        // Colocated sections have the same first lane in the problem, and share their lanes here too.
        if (s == 0 || problem.stages[s - 1].section != shape.section) of_section = shape.first_lane;
        const int lane = first.emplace(of_section, instance.lanes).first->second;
        shape.first_lane += lane - of_section;
        instance.lanes = std::max(instance.lanes, shape.lane(shape.groups - 1) + 1);
    }
    const std::size_t count = instance.stages.size() * samples.size();
    instance.forward.resize(count);
    instance.backward.resize(count);
    instance.transfer.resize(count);
    instance.common.resize(count);
    instance.active.resize(count);
    instance.other_work.resize(samples.size());
    instance.ids.reserve(samples.size());
    for (int i = 0; i < instance.samples; ++i) {
        const SampleCost& sample = problem.samples[samples[i]];
        instance.ids.push_back(sample.id);
        for (std::size_t s = 0; s < instance.stages.size(); ++s) {
            const TaskCost& cost = sample.stages[s];
            // The zeros that stay let loads and keys sum over all sections without asking which are active.
            if (!cost.active) continue;
            const std::size_t at = instance.at(static_cast<int>(s), i);
            instance.active[at] = 1;
            instance.forward[at] = cost.forward_s;
            instance.transfer[at] = cost.transfer_s;
            instance.common[at] = cost.common;
            instance.backward[at] = instance.stages[s].backward ? cost.backward_s : 0;
            if (instance.section_of(static_cast<int>(s)) != instance.section_of(instance.anchor))
                instance.other_work[i] = 1;
        }
    }
    instance.bottleneck = bottleneck_of(instance, instance.section_of(instance.anchor));
    instance.sets = count_sets(instance.stages, instance.shape(instance.anchor).groups);
    return instance;
}

Instance whole(const Problem& problem) {
    std::vector<int> all(problem.samples.size());
    std::iota(all.begin(), all.end(), 0);
    Instance instance = part(problem, 1, all);
    // The agendas of a plan are indexed by the lanes of the problem, and simulate() executes them on this
    // instance: it keeps the problem's numbers, and lanes that no section uses.
    for (std::size_t s = 0; s < problem.stages.size(); ++s)
        instance.stages[s].first_lane = problem.stages[s].first_lane;
    instance.lanes = problem.lanes;
    return instance;
}

}  // namespace maestro::schedule
