// Lays the sections on the ranks of the world, so that what communicates most stays within nodes.
#pragma once

#include <vector>

#include "graph/section_graph.hpp"

namespace maestro::graph {

/// How often the borders between nodes cut a section. Every border that cuts a lane cuts a replica too, and
/// every one that cuts a replica its section. Compared in the order of the members, because the ranks of a
/// lane communicate in every layer, those of a replica in every micro-batch, and replicas once a step.
struct Cuts {
    int lanes = 0, replicas = 0, sections = 0;
    auto operator<=>(const Cuts&) const = default;
    Cuts& operator+=(const Cuts& other) {
        lanes += other.lanes;
        replicas += other.replicas;
        sections += other.sections;
        return *this;
    }
};

/// Returns the cuts through a section that begins with rank `first_rank`.
Cuts cuts_of(const Section& section, int first_rank, int ranks_per_node);

/// Sets the first rank and the first lane of every section that is not colocated with another; a colocated
/// one is left as it is. The degrees of all layouts are at least 1, and `world` is the sum of the ranks.
///
/// A section is laid at its layout's first_rank where the deck sets it. The others fill the ranks that are
/// left, one after the other, in the order with the fewest cuts; of several such orders, in the one that
/// follows the order of the sections longest. Without borders, on one node or with `ranks_per_node` 0
/// (unknown), that is the order of the sections itself. More than 16 sections are not searched: where there
/// are borders, the larger come first, and first_rank is set for all of them or for none.
///
/// A first_rank is refused if the ranks could then not be covered, each once. Whether they can does not
/// depend on `ranks_per_node`. After a refusal the ranks are of no use.
void lay_sections(std::vector<Section>& sections, int world, int ranks_per_node,
                  std::vector<Refusal>& refusals);

}  // namespace maestro::graph
