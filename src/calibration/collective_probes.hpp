// What collectives take on this machine, in the groups in which ranks train.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/arena.hpp"
#include "backend/backend.hpp"
#include "collective/collective_times.hpp"
#include "comm/communicator.hpp"

namespace maestro::calibration {

/// The ranks of the world in groups of one form, which all work at the same time.
struct ProbedGroups {
    int ranks = 2, nodes = 1;
    std::vector<int> group_of;  ///< by rank of the world; -1: in none
    bool operator==(const ProbedGroups&) const = default;
};
/// Returns the forms that are measured. Within nodes: 2, 4, 8 and so on ranks, and all of the largest node.
/// Across 2, 4, 8 and so on nodes, and all: one rank of each, as where tp fills the nodes, and, with several
/// ranks on each node, as many of each as the smallest node has. `node_of`: a number for each rank, equal for
/// ranks on one node.
std::vector<ProbedGroups> probed_groups(std::span<const int> node_of);

/// Collective. Measures every kind of collective in these groups, on tensors of each of these sizes: see
/// collective::CollectiveRow. A row is the median over the ranks of the best of several series. The groups
/// are those of training (collective::make_process_group), on the CPU as on GPUs; `memory` has room for twice
/// the largest size and 64 MiB. All ranks return the same rows.
std::vector<collective::CollectiveRow> measure_collectives(const comm::Communicator& world,
                                                           std::span<const int> node_of,
                                                           backend::Backend& backend, backend::Arena& memory,
                                                           std::span<const std::int64_t> sizes);

}  // namespace maestro::calibration
