// Everything besides the samples that determines the costs, the memory and the traffic of a step: the section
// graph, the models, the batch, the number formats and the machines. A plain value, which a planner copies
// and changes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/dtype.hpp"
#include "base/shard.hpp"
#include "config/cluster.hpp"
#include "config/deck.hpp"
#include "graph/section_graph.hpp"
#include "model/module.hpp"

namespace maestro::workload {

/// How a section trains.
struct Tuning {
    Lora lora = {};
    parallel::FrozenParameters frozen = {};
    Recompute recompute = Recompute::none;
    int recompute_layers = 0;  ///< the first layers of each stage, to which it applies; 0: all
};

struct Scenario {
    graph::SectionGraph graph;
    std::vector<model::ModelSpec> models;       ///< by section
    std::vector<config::Distill> distillation;  ///< by section, of those that have a teacher
    std::vector<Tuning> tuning;                 ///< by section
    std::vector<Range> layers;                  ///< by stage: those of its section's model that it has
    std::int64_t global_batch = 1;              ///< samples of a step
    std::int64_t sequence_length = 512;         ///< the most tokens of a sample, picture tokens included
    DType compute = DType::f32;
    TpOverlap tp_overlap = TpOverlap::automatic;
    std::uint64_t seed = 0;  ///< of the initial weights
    Markers markers = {};    ///< those of the samples
    /// The machines that times are counted for. Without it, they are counted at a nominal rate.
    std::optional<config::Cluster> cluster;
    /// Where the program runs, without a cluster: the node of each rank of the world. Empty: not known.
    std::vector<int> rank_nodes = {};

    /// Samples of a full micro-batch: no step has more than its global batch.
    int full_micro_batch(int section) const;
    /// Returns the same of a group of replicas that share lanes.
    int full_lane_micro_batch(int section) const;
};

/// The sizes of a model of a deck, with the form of its family.
model::ModelSpec spec_of(const config::Model& model);

/// The scenario that the deck describes, checked; its markers and cluster are left to the caller, because
/// they come from other files. With Times::from_file the sections may lack a model. Throws Error(bad_deck,
/// all_ranks) with all problems, a line each, at the place of their keys.
Scenario make_scenario(const config::Deck& deck, config::Times times = config::Times::model);
/// What make_scenario() refuses, for config::parse_deck() to report with its own errors. Where the deck is
/// not `sound`, only the layouts are checked: its graph would be refused for what other errors have caused.
std::vector<graph::Refusal> check_scenario(const config::Deck& deck, config::Times times, bool sound);

/// `base` with its sections laid on nodes of `ranks_per_node` ranks, 0: unknown (graph/lay_sections.hpp).
Scenario on_nodes(Scenario base, int ranks_per_node);
/// `base` on the nodes of a cluster, for which times are counted then.
Scenario on_cluster(Scenario base, config::Cluster cluster);
/// `base` with other layouts, micro-batches, windows or colocation: `sections` are those of its graph, in the
/// same order, on the same nodes, and all derived fields of the graph are computed again. What does not fit
/// is appended to `refusals`; the result may be used only if nothing was.
Scenario with_sections(Scenario base, std::vector<graph::Section> sections,
                       std::vector<graph::Refusal>& refusals);

/// The scenario of a framework in which all ranks run the same: every rank holds a replica of every section.
Scenario in_one_layout(const Scenario& base);

/// Checks the layout of each section against the sizes of its model. Appends what does not fit to `refusals`.
void check_layouts(const std::vector<graph::Section>& sections, const std::vector<model::ModelSpec>& models,
                   std::vector<graph::Refusal>& refusals);
/// Checks each edge against the models and batches at both ends. The graph is complete.
void check_edges(const Scenario& scenario, std::vector<graph::Refusal>& refusals);
/// Checks that each part which a section freezes is a part of its model, and that something is left to train.
/// `sections` are those of the deck. The graph is complete.
void check_frozen(const Scenario& scenario, const std::vector<config::Section>& sections,
                  std::vector<graph::Refusal>& refusals);

}  // namespace maestro::workload
