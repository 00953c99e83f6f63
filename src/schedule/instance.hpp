// Instance: a problem, or one group of it, as flat arrays. A group is a set of replicas that serve each other
// and no others, so that groups can be scheduled independently.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/problem.hpp"

namespace maestro::schedule {

struct Instance {
    std::vector<StageShape> stages;  ///< replicas and first_lane within the instance
    std::vector<EdgeShape> edges;
    int lanes = 0;   ///< a lane runs one task at a time
    int anchor = 0;  ///< the stage with a loss and the most replicas; samples are assigned to its replicas
    int entry = 0;   ///< the first stage of the anchor's section, whose order all of its stages follow
    std::vector<int> bottleneck;  ///< bottleneck_of() the anchor's section
    int samples = 0;
    bool zero_is_none = false;
    std::vector<std::int64_t> ids;         ///< [samples]
    std::vector<double> forward;           ///< [stage * samples + sample], seconds; 0 where not active
    std::vector<double> backward;          ///< likewise; 0 where the section has none
    std::vector<double> transfer;          ///< likewise
    std::vector<std::uint8_t> active;      ///< likewise
    std::vector<std::uint8_t> other_work;  ///< [samples]: active in a section other than the anchor's

    std::size_t at(int stage, int sample) const { return static_cast<std::size_t>(stage) * samples + sample; }
    double total(int stage, int sample) const {
        return forward[at(stage, sample)] + backward[at(stage, sample)];
    }
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
    /// Returns the replica of `stage` that processes the samples of replica `a` of the anchor.
    int replica_of(int stage, int a) const {
        return static_cast<int>(std::int64_t{a} * shape(stage).replicas / shape(anchor).replicas);
    }
    /// Returns the first of the anchor's replicas that replica `r` of `stage` serves. It serves those up to
    /// the first one of replica `r` + 1.
    int first_anchor_of(int stage, int r) const {
        const std::int64_t replicas = shape(stage).replicas;
        return static_cast<int>((std::int64_t{r} * shape(anchor).replicas + replicas - 1) / replicas);
    }
};

/// Returns the stages of a section on the lane with the most work from it: the section works at its rate. One
/// stage, unless the section has several chunks.
std::vector<int> bottleneck_of(const Instance& instance, int section);

/// Returns the stage with a loss and the most replicas. Throws Error(broken_invariant) if there is none.
int anchor_stage(const Problem& problem);

/// Returns the number of groups: the greatest common divisor of all replicas.
int groups_of(const Problem& problem);

/// Returns the whole problem as one instance.
Instance whole(const Problem& problem);

/// Returns the problem of one of `groups` groups with the samples of these indices.
Instance part(const Problem& problem, int groups, const std::vector<int>& samples);

}  // namespace maestro::schedule
