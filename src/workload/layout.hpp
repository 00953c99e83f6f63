// How the ranks of a lane hold a micro-batch of a section, and with it the rows that an edge takes from there
// or brings. Pure; edges, their slots and the modules ask here.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/shard.hpp"
#include "graph/section_graph.hpp"
#include "parallel/mesh.hpp"
#include "parallel/partition.hpp"
#include "workload/sample_table.hpp"
#include "workload/scenario.hpp"

namespace maestro::workload {

parallel::Degrees degrees_of(const graph::Section& section);
parallel::MeshShape mesh_shape_of(const Scenario& scenario, int section);
/// The links that the section's process groups use: those of the scenario's cluster, or free of charge
/// without one.
parallel::MeshLinks mesh_links_of(const Scenario& scenario, int section);
/// The meta mesh of rank `rank` of the section's first replica.
parallel::Mesh meta_mesh_of(const Scenario& scenario, int section, int rank = 0);
/// Do embeddings enter a section whose replicas are several ranks? Then the table has to know the markers.
bool needs_markers(const graph::SectionGraph& graph);

/// The sequences within which a section's attention stays: pictures (vision) or samples (language), in the
/// order of the micro-batch.
struct Packing {
    std::vector<std::int64_t> lengths;    ///< rows of each
    std::vector<std::size_t> samples{0};  ///< S + 1: where the sequences of each sample begin
    parallel::AttentionMask mask = parallel::AttentionMask::causal;
    std::int64_t unit = 1;  ///< rows that become one row of output
};
Packing packing_of(const SampleTable& table, int section, std::span<const std::int64_t> samples);
Packing packing_of(const SampleTable& table, int section, std::span<const model::SampleShape> samples);
parallel::Partition partition_of(const Packing& packing, parallel::Degrees degrees);

/// By sample, ascending: which rank of the lane holds which rows of it, as an edge counts them.
using RowPlacements = std::vector<std::vector<parallel::RowPlacement>>;

/// Of the rows that a section puts out. `local`: in what that rank puts out for the micro-batch.
RowPlacements outputs_of(const Packing& packing, parallel::Degrees degrees);
/// Of the rows that come in where every sample is one sequence. `places[i]`: rows of sequence i that the
/// edge's rows take in their order, ascending. `local`: among the rows of this sample that the rank gets.
RowPlacements inputs_of(const Packing& packing, std::span<const std::vector<Range>> places,
                        parallel::Degrees degrees);

/// Rows of the sample in section `to` that those of the edge from section `from` take: pictures stand where
/// their markers were (as model::Language packs them), hidden states replace nothing and cover all. For one
/// rank, which gets them all, it is enough how many there are; for several the table has to know the markers.
std::vector<Range> places_of(const SampleTable& table, int from, int to, std::int64_t sample,
                             parallel::Degrees degrees);

}  // namespace maestro::workload
