// Instance: a problem, or one sub-problem of it, as flat arrays. A sub-problem is a set of groups that
// serve each other and no others, so that sub-problems can be scheduled independently.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/problem/problem.hpp"

namespace maestro::schedule {

/// Indices from `first` up to, but not including, `last`.
struct IndexRange {
    int first = 0, last = 0;
    int size() const { return last - first; }
};

/// A line is divided into `count` equal parts, and into `others` of another kind. Returns those of the other
/// kind that overlap part `i`.
inline IndexRange overlap(int i, int count, int others) {
    const std::int64_t first = std::int64_t{i} * others, last = first + others;
    return {static_cast<int>(first / count), static_cast<int>((last + count - 1) / count)};
}

struct Instance {
    std::vector<StageShape> stages;  ///< groups and first_lane within the instance
    std::vector<EdgeShape> edges;
    int lanes = 0;   ///< a lane runs one task at a time
    int anchor = 0;  ///< the stage with a loss and the most groups; samples are assigned to its groups
    int entry = 0;   ///< the first stage of the anchor's section, whose order all of its stages follow
    int sets = 1;    ///< see group_of()
    std::vector<int> bottleneck;  ///< bottleneck_of() the anchor's section
    int samples = 0;
    bool zero_is_none = false;
    std::vector<std::int64_t> ids;         ///< [samples]
    std::vector<double> forward;           ///< [stage * samples + sample], seconds; 0 where not active
    std::vector<double> backward;          ///< likewise; 0 where the section has none
    std::vector<double> transfer;          ///< likewise
    std::vector<double> common;            ///< likewise, TaskCost::common
    std::vector<std::uint8_t> active;      ///< likewise
    std::vector<std::uint8_t> other_work;  ///< [samples]: active in a section other than the anchor's

    std::size_t at(int stage, int sample) const { return static_cast<std::size_t>(stage) * samples + sample; }
    double total(int stage, int sample) const {
        return forward[at(stage, sample)] + backward[at(stage, sample)];
    }
    /// Returns the share of a task's seconds that a sample's part works alone.
    double alone(int stage, int sample) const { return 1 - common[at(stage, sample)]; }
    const StageShape& shape(int stage) const { return stages[stage]; }
    int section_of(int stage) const { return stages[stage].section; }
    int sections() const { return stages.back().section + 1; }
    /// Returns the first and the last stage of a section.
    int first_stage(int section) const;
    int last_stage(int section) const;
    bool first_of_section(int stage) const {
        return stage == 0 || section_of(stage - 1) != section_of(stage);
    }
    /// Returns whether the stage's section has a loss. The other sections work for those.
    bool of_loss(int stage) const { return shape(last_stage(section_of(stage))).loss; }
    /// Returns the group of `stage` in a set. A set has one group of each stage, and these serve each other:
    /// a sample that is assigned to a set goes to its groups everywhere.
    int group_of(int stage, int set) const {
        return static_cast<int>(std::int64_t{set} * shape(stage).groups / sets);
    }
    /// Returns the sets that have group `a` of the anchor.
    IndexRange sets_of(int a) const { return overlap(a, shape(anchor).groups, sets); }
    /// Returns the groups of the anchor that group `r` of `stage` serves.
    IndexRange anchors_of(int stage, int r) const {
        return overlap(r, shape(stage).groups, shape(anchor).groups);
    }
    /// Returns the groups of `stage` that serve group `a` of the anchor.
    IndexRange serving(int stage, int a) const {
        return overlap(a, shape(anchor).groups, shape(stage).groups);
    }
};

/// Returns the stages of a section on the lane with the most work from it: the section works at its rate. One
/// stage, unless the section has several chunks.
std::vector<int> bottleneck_of(const Instance& instance, int section);

/// Returns the stage with a loss and the most groups. Throws Error(broken_invariant) if there is none.
int anchor_stage(const Problem& problem);

/// Returns the number of sub-problems: the greatest common divisor of the sections' numbers of groups.
int sub_problems_of(const Problem& problem);

/// Assigns samples to the sets of their anchor groups.
class SetAssignment {
public:
    explicit SetAssignment(const Instance& instance);
    /// Returns the set in which the fullest group that has work for the sample is least loaded (list
    /// scheduling; Graham, 1969), with all samples that were added before.
    int add(int sample, int anchor_group);
    /// Adds the sample to this set.
    void add_to(int set, int sample);

private:
    std::vector<double> work_of(int sample) const;
    double& load(std::size_t k, int set) {
        return load_[k][instance_.group_of(instance_.first_stage(sections_[k]), set)];
    }

    const Instance& instance_;
    std::vector<int> sections_;              ///< of which several groups may serve an anchor group
    std::vector<std::vector<double>> load_;  ///< [of sections_][group], seconds
};

/// Returns the whole problem as one instance.
Instance whole(const Problem& problem);

/// Returns the problem of one of `sub_problems` sub-problems with the samples of these indices.
Instance part(const Problem& problem, int sub_problems, const std::vector<int>& samples);

}  // namespace maestro::schedule
