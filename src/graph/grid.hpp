// Maps every rank of the world to its replica of each of its sections and its coordinates there. Pure
// arithmetic on the graph, and the only place that computes ranks, replicas and lanes.
//
// The ranks of a section are consecutive; lay_sections.hpp says with which of the world they begin. They are
// ordered [replica group][pp][part][cp][tp], tp fastest. A lane is the ranks of a replica group with one
// coordinate along pp: they run one list of tasks together, those of one stage or, with several chunks, of
// several. The first of them is its leader. Colocated sections share ranks and lanes. A lane has as many
// ranks as fit whole replicas of each of its sections: where a section has several replicas on a lane, they
// are a group, and each is a part of the lane. Otherwise every replica is a group by itself.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/section_graph.hpp"

namespace maestro::graph {

/// Coordinates of a rank in a section.
struct Place {
    int replica = 0, pp = 0, cp = 0, tp = 0;
    bool operator==(const Place&) const = default;
};

/// The rank of the world at this place. Coordinates are within the layout.
int rank_at(const Section& section, const Place& place);
/// The coordinates of a rank in the section; none if the rank does not belong to it.
std::optional<Place> place_of(const Section& section, int rank);
inline bool holds(const Section& section, int rank) {
    return place_of(section, rank).has_value();
}

/// The lane of a replica group of the section and a pipeline rank; lanes are numbered in the order of
/// their leaders.
int lane_of(const Section& section, int replica_group, int pp = 0);
/// The lane of the rank.
int lane_on(const SectionGraph& graph, int rank);
/// The node of the rank; 0 where the nodes are unknown.
inline int node_of(const SectionGraph& graph, int rank) {
    return graph.ranks_per_node > 0 ? rank / graph.ranks_per_node : 0;
}
/// Ranks of the lane, the leader first; the same for each section on it.
std::vector<int> ranks_of(const SectionGraph& graph, int lane);

/// The lane of a stage in a replica group.
int lane_of(const SectionGraph& graph, int stage, int replica_group);
/// The first rank of the stage's first replica, and the last rank of its last replica.
int first_rank_of(const SectionGraph& graph, int stage);
int last_rank_of(const SectionGraph& graph, int stage);
/// Whether the rank runs the tasks of the stage.
bool holds(const SectionGraph& graph, int stage, int rank);

/// Whether every replica of the producer and the consumer that it serves are the same single rank, so that
/// the edge passes a pointer.
bool passes_pointer(const SectionGraph& graph, const StageEdge& edge);

/// "rank 3", "ranks 1-3".
std::string describe_ranks(const Section& section);
/// The coordinates of a rank: "vision replica 0, language replica 2 cp 1 tp 0". Degrees of 1 are left out.
std::string describe_place(const SectionGraph& graph, int rank);

}  // namespace maestro::graph
