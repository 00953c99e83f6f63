// The mesh and links of a stage, which ranks of a replica hold which rows of a micro-batch, and with that
// which rows an edge moves between which ranks. Pure functions of lengths and degrees, shared by the edges,
// their slots and the modules.
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
/// Returns the mesh of a stage.
parallel::MeshShape mesh_shape_of(const Scenario& scenario, int stage);
/// Returns the part of a stage's mesh of which a task knows: the other replicas with which it shares experts,
/// and no other stage.
parallel::MeshShape task_mesh(parallel::MeshShape shape);
/// Returns the links that a task uses, without those of gradients and of tied weights.
parallel::MeshLinks task_links(parallel::MeshLinks links);
/// Whether the stage holds a copy of a tied embedding: the first stage of a pipeline embeds tokens by it, and
/// the last one computes the loss by it.
bool is_tied(const Scenario& scenario, int stage);
/// Whether the `index`-th of `count` stages of a section would.
bool is_tied(const Scenario& scenario, int section, int index, int count);
/// Returns the links that the stage's process groups use, on the scenario's cluster, or free of charge
/// without one. Replicas begin at different places on their nodes: along tp, cp and tied, all of them count
/// as crossing the network if a group of one does.
parallel::MeshLinks mesh_links_of(const Scenario& scenario, int stage);
/// Returns the node of each rank of the groups that share the stage's experts: one list for each distinct
/// placement of a group, those over more nodes first. Empty where no ranks share experts, or where the nodes
/// are not known.
std::vector<std::vector<int>> expert_nodes_of(const Scenario& scenario, int stage);
/// Returns the first of these lists, by which costs and traffic are computed. Empty where there is none.
std::vector<int> widest_expert_nodes_of(const Scenario& scenario, int stage);
/// Returns the meta mesh of rank `rank` of the stage.
parallel::Mesh meta_mesh_of(const Scenario& scenario, int stage, int rank = 0);
/// Whether embeddings enter a section whose replicas have several ranks. Only then does the sample table need
/// the positions of the markers.
bool needs_markers(const graph::SectionGraph& graph);

/// The sequences of a packed micro-batch, in its order: items of an encoder, or samples. Attention does not
/// cross from one to another.
struct PackedSequences {
    std::vector<std::int64_t> lengths;  ///< rows of each sequence
    std::vector<std::size_t> samples{
        0};  ///< S + 1 values: the first sequence of each sample, then their number
    parallel::AttentionMask mask = parallel::AttentionMask::causal;
    std::int64_t unit = 1;  ///< rows that become one row of output
};
PackedSequences pack_sequences(const SampleTable& table, int section, std::span<const std::int64_t> samples);
PackedSequences pack_sequences(const SampleTable& table, int section,
                               std::span<const model::SampleShape> samples);
parallel::Partition partition_of(const PackedSequences& packing, parallel::Degrees degrees);

/// Returns the rows of the residual stream on each rank of a replica's stage, in their order.
std::vector<std::int64_t> rows_of_ranks(const PackedSequences& packing, parallel::Degrees degrees);

/// For each sample, in ascending order of its rows on the edge: which rank of the replica holds which of
/// them.
using RowPlacements = std::vector<std::vector<parallel::RowPlacement>>;

/// Returns where the output rows of a section are. `local` counts within the output of that rank for the
/// micro-batch.
RowPlacements outputs_of(const PackedSequences& packing, parallel::Degrees degrees);
/// Returns where the rows of the residual stream are, which stages of a section pass on. `local` counts as in
/// outputs_of(), or with `by_sample` within the rows of this sample that the rank holds.
RowPlacements stream_of(const PackedSequences& packing, parallel::Degrees degrees, bool by_sample);
/// Returns where the rows that an edge delivers are needed, in a section where every sample is one sequence.
/// `places[i]`: the rows of sequence i that the edge's rows become, in ascending order. `local` counts within
/// the rows of this sample that the rank receives.
RowPlacements inputs_of(const PackedSequences& packing, std::span<const std::vector<Range>> places,
                        parallel::Degrees degrees);

/// Returns the rows of the sample in section `to` that the rows of the edge from section `from` become. An
/// item has the rows at the position of its marker, as model::Language packs it; hidden states cover all
/// rows. For one rank, which receives all rows, their number suffices; for several ranks the table needs the
/// marker positions.
std::vector<Range> places_of(const SampleTable& table, int from, int to, std::int64_t sample,
                             parallel::Degrees degrees);

}  // namespace maestro::workload
