#include "schedule/instance.hpp"

#include <map>
#include <numeric>

#include "base/check.hpp"

namespace maestro::schedule {

/// Because no section has more replicas than the anchor, every replica of another section serves at least one
/// replica of the anchor, so that a sample's replica of the anchor decides its replicas everywhere
/// (replica_of()). Of several such stages the first is the anchor: all callers find the same one.
int anchor_stage(const Problem& problem) {
    int anchor = -1;
    for (std::size_t s = 0; s < problem.stages.size(); ++s)
        if (problem.stages[s].loss &&
            (anchor < 0 || problem.stages[s].replicas > problem.stages[anchor].replicas))
            anchor = static_cast<int>(s);
    MAESTRO_CHECK(anchor >= 0, "no stage computes a loss");
    return anchor;
}

/// An edge joins the replicas of two sections in proportion: if each section's replicas are cut into g equal
/// ranges, no edge leaves its range. All sections can be cut so if g divides all numbers of replicas.
int groups_of(const Problem& problem) {
    int groups = 0;
    for (const auto& s : problem.stages) groups = std::gcd(groups, s.replicas);
    return groups;
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

Instance part(const Problem& problem, int groups, const std::vector<int>& samples) {
    Instance instance;
    instance.stages = problem.stages;
    instance.edges = problem.edges;
    instance.anchor = anchor_stage(problem);
    instance.entry = instance.first_stage(instance.section_of(instance.anchor));
    instance.zero_is_none = problem.zero_is_none;
    instance.samples = static_cast<int>(samples.size());
    std::map<int, int> first;  // of the problem -> of the instance
    int next = 0;
    for (StageShape& shape : instance.stages) {
        shape.replicas /= groups;
        // Stages of colocated sections have the same first lane in the problem, and share theirs here too.
        // The lanes of a pipeline's stages alternate: all begin within the first `lane_stride` lanes. Further
        // chunks share the lanes of the first one.
        const auto [at, added] = first.emplace(shape.first_lane, next);
        shape.first_lane = at->second;
        if (added) next = shape.first_lane + 1;
        instance.lanes = std::max(instance.lanes, shape.lane(shape.replicas - 1) + 1);
        const bool last = &shape == &instance.stages.back() || (&shape + 1)->section != shape.section;
        if (last) next = instance.lanes;
    }
    const std::size_t count = instance.stages.size() * samples.size();
    instance.forward.resize(count);
    instance.backward.resize(count);
    instance.transfer.resize(count);
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
            instance.backward[at] = instance.stages[s].backward ? cost.backward_s : 0;
            if (instance.section_of(static_cast<int>(s)) != instance.section_of(instance.anchor))
                instance.other_work[i] = 1;
        }
    }
    instance.bottleneck = bottleneck_of(instance, instance.section_of(instance.anchor));
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
