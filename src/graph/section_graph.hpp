// The section graph: the sections, the edges between them, the ranks of each section, and where gradients
// flow. Plain values.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "spec/context_kind.hpp"
#include "spec/edge_tensor.hpp"

namespace maestro::graph {

/// The most micro-batches of a replica group that may be in flight: the largest count that a channel's flags
/// hold.
inline constexpr int kMaxInFlight = 65535;

enum class Kind {
    encoder,
    language,
    any,  ///< no model: only the times of its tasks are known
};

struct Layout {
    int dp = 1, tp = 1, cp = 1, pp = 1;
    int ep = 1, etp = 1;  ///< of experts, folded over the ranks of dp, cp and tp
    ContextKind cp_kind = ContextKind::ring;
    int chunks = 1;                ///< stages of a pipeline rank (Megatron's virtual pipeline stages)
    std::vector<int> layers = {};  ///< of each stage; empty: balanced by their costs
    int first_rank = -1;           ///< of the world; -1: laid by the grid
    int stage_count() const { return pp * chunks; }
    int ranks() const { return dp * tp * cp * pp; }
    int stage_ranks() const { return tp * cp; }    ///< ranks of a replica that hold a stage together
    int expert_ranks() const { return ep * etp; }  ///< ranks that share the experts of a layer
    bool operator==(const Layout&) const = default;
};

/// A section. Its position in the list is its colour.
struct Section {
    std::string name;
    Kind kind = Kind::language;
    bool train = true;          ///< false: frozen
    int micro_batch = 1;        ///< samples
    int window = 1;             ///< micro-batches in flight per replica group; 0: automatic
    std::string colocate_with;  ///< "" or the section whose ranks it shares
    Layout layout;
    // Derived by make_graph:
    int first_rank = 0, first_lane = 0, first_stage = 0;
    int lane_replicas = 1;  ///< replicas that share a lane; a divisor of layout.dp
    bool backward = false;  ///< it trains, or a section upstream of it does
    bool loss = false;      ///< no outgoing edge: it computes the loss

    /// A replica group is the replicas that share a lane and run each micro-batch together. Plans, channels
    /// and routes are made for replica groups.
    int replica_groups() const { return layout.dp / lane_replicas; }
    int lanes() const { return replica_groups() * layout.pp; }
    int lane_ranks() const { return lane_replicas * layout.stage_ranks(); }
    /// Whether replicas share experts, and then run every micro-batch together, also those without samples.
    bool replicas_share_experts() const { return layout.stage_ranks() % layout.expert_ranks() != 0; }
    /// Samples of a micro-batch of a replica group: `micro_batch` for each replica, but at most about 2^30.
    int lane_micro_batch() const { return lane_replicas * std::min(micro_batch, (1 << 30) / lane_replicas); }
    bool operator==(const Section&) const = default;
};

struct Edge {
    std::string from_name, to_name;
    EdgeTensor tensor = EdgeTensor::embeddings;
    // Derived:
    int from = -1, to = -1;  ///< colours
    bool gradient = false;   ///< a gradient flows back
};

/// A stage of a section: consecutive layers of its model, on one lane of each replica group. A section
/// without pipeline parallelism has one. With several chunks, stage k is on pipeline rank k mod pp, so that a
/// lane has several stages of the section.
struct Stage {
    int section = 0;        ///< colour
    int index = 0;          ///< within the section
    int pipeline_rank = 0;  ///< see Place
};

/// What carries rows from one stage to another: an edge of the graph, or the residual stream within a
/// section. Embeddings enter a section at its first stage. Hidden states, and whatever leaves a section, are
/// those of its last one.
struct StageEdge {
    int from = 0, to = 0;  ///< stages
    EdgeTensor tensor = EdgeTensor::stream;
    int edge = -1;  ///< in SectionGraph::edges; -1 within a section
    bool gradient = false;

    bool within_section() const { return edge < 0; }
};

struct SectionGraph {
    std::vector<Section> sections;
    std::vector<Edge> edges;
    int ranks_per_node = 0;  ///< the last node may have fewer; 0: unknown
    // Derived:
    std::vector<Stage> stages;           ///< of all sections; those of a section are consecutive
    std::vector<StageEdge> stage_edges;  ///< those of `edges` first, in the same order
    std::vector<int> order;              ///< colours, upstream before downstream
    int world = 0;                       ///< ranks
    int lanes = 0;

    const Section& section_of(int stage) const { return sections[stages[stage].section]; }
    int last_stage(int section) const {
        return stage_of(section, sections[section].layout.stage_count() - 1);
    }
    bool has_pipelines() const { return stages.size() > sections.size(); }
    /// The number of a section's stage, which has this index within it, among those of all sections.
    int stage_of(int section, int index) const { return sections[section].first_stage + index; }
    /// "vision", or "language stage 2" where the section has several.
    std::string stage_name(int stage) const;
    std::vector<std::string> stage_names() const;
};

/// An error, with the deck key that it belongs to ("section.vision.layout.dp",
/// "edge.vision-language.from").
struct Refusal {
    std::string key;
    std::string what;
};

/// Makes the graph and derives all derived fields. Sections are laid on nodes of `ranks_per_node` ranks (see
/// lay_sections.hpp), which decides on their first ranks alone. Errors are appended to `refusals` and do not
/// depend on the nodes; the graph may be used only if there was none.
SectionGraph make_graph(std::vector<Section> sections, std::vector<Edge> edges,
                        std::vector<Refusal>& refusals, int ranks_per_node = 0);

/// Returns why a launch on `ranks` ranks does not fit and which command does, or "" if it fits.
std::string launch_refusal(const SectionGraph& graph, int ranks);

}  // namespace maestro::graph
