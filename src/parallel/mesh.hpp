// The process groups of one rank in a section, by the axes along which the section's ranks share the work
// (PyTorch's DeviceMesh).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/shard.hpp"
#include "collective/process_group.hpp"
#include "parallel/partition.hpp"
#include "spec/context_kind.hpp"

namespace maestro::parallel {

/// The axes of a mesh. Ranks along dp share the samples, along cp the rows of a micro-batch, along tp the
/// heads, the channels and the vocabulary. `kv` is a part of tp: with more tp ranks than KV heads,
/// consecutive tp ranks hold copies of the same KV head. Along `tied` are the ranks of the first and the last
/// stage of a pipeline, where both hold copies of a tied embedding.
/// The same ranks in another order are the axes of experts: along `ep` each holds some of the experts, or a
/// part of their hidden channels, and along `edp` they hold the same ones.
enum class Axis : unsigned { dp = 1, cp = 2, tp = 4, kv = 8, tied = 16, ep = 32, edp = 64 };

/// A set of axes. It identifies a process group: the ranks whose coordinates differ along these axes only.
class Axes {
public:
    constexpr Axes() = default;
    constexpr Axes(Axis axis) : bits_(static_cast<unsigned>(axis)) {}
    constexpr Axes operator|(Axes other) const {
        Axes both;
        both.bits_ = bits_ | other.bits_;
        return both;
    }
    constexpr bool operator==(const Axes&) const = default;
    constexpr bool empty() const { return bits_ == 0; }

private:
    unsigned bits_ = 0;
};
constexpr Axes operator|(Axis a, Axis b) {
    return Axes(a) | Axes(b);
}

/// Ranks along these axes hold the same weights. Their gradients are summed, and the optimizer's states are
/// sharded over them.
inline constexpr Axes kDataAxes = Axis::dp | Axis::cp;
/// The same for the weights of experts.
inline constexpr Axes kExpertDataAxes = Axis::edp;
/// The axes within a replica along which ranks may hold copies of the same weights. Each copy's gradient is
/// partial.
inline constexpr Axis kReplicaAxes[] = {Axis::tp, Axis::kv, Axis::tied};

/// A stage's place along Axis::tied.
struct TiedStage {
    int index = 0, count = 1;  ///< count 1: it shares no weights with another stage
    bool operator==(const TiedStage&) const = default;
};

/// How the ranks of a mesh share the experts of its layers (layout.ep and layout.etp). They are ordered
/// [edp][ep][etp]: rank e of `ep` has the e-th part of the experts, and rank t of `etp` the t-th part of the
/// hidden channels of each.
struct ExpertDegrees {
    int ep = 1, etp = 1;
    int ranks() const { return ep * etp; }
    bool operator==(const ExpertDegrees&) const = default;
};

/// The shape of the mesh of a section or of one of its stages. Its ranks are ordered [dp][cp][tp], tp
/// fastest.
struct MeshShape {
    int dp = 1;
    Degrees degrees = {};
    ContextKind context_kind = ContextKind::ring;
    int kv_heads = 1;       ///< of the model
    bool trainable = true;  ///< gradients are reduced, for which the mesh has a group over kDataAxes
    TiedStage tied = {};
    bool has_experts = false;  ///< the mesh has groups for experts
    ExpertDegrees experts = {};
    bool operator==(const MeshShape&) const = default;

    int ranks() const { return dp * degrees.ranks(); }
    /// Whether the group along kExpertDataAxes is another one than that along kDataAxes.
    bool has_own_expert_data() const { return has_experts && experts.ranks() != degrees.tp; }
    int data_ranks() const { return dp * degrees.cp; }
    /// Returns how many ranks hold the same weights, along kDataAxes or kExpertDataAxes.
    int copies(Axes axes) const { return axes == kExpertDataAxes ? ranks() / experts.ranks() : data_ranks(); }
    /// Returns how many tp ranks hold copies of one KV head.
    int kv_ranks() const { return degrees.tp > kv_heads ? degrees.tp / kv_heads : 1; }
};

/// The process groups of this rank, which the mesh owns. Where a degree is 1 the group consists of this rank
/// alone and its collectives move nothing.
class Mesh {
public:
    const MeshShape& shape() const { return shape_; }
    Degrees degrees() const { return shape_.degrees; }
    ContextKind context_kind() const { return shape_.context_kind; }

    /// Returns the group along tp, cp, kv, tied or ep, or along kDataAxes or kExpertDataAxes where the shape
    /// is trainable; the last two may be one group. Throws Error(broken_invariant) for any other set of axes.
    collective::ProcessGroup& group(Axes axes) const;
    bool has(Axes axes) const;
    collective::ProcessGroup& tp() const { return *groups_[0].group; }
    collective::ProcessGroup& cp() const { return *groups_[1].group; }

    int tp_rank() const { return tp().rank(); }
    int cp_rank() const { return cp().rank(); }
    int rank_in_replica() const { return cp_rank() * shape_.degrees.tp + tp_rank(); }
    /// Returns this rank's number among all ranks of the mesh, replica after replica.
    int rank_in_stage() const { return dp_rank_ * shape_.degrees.ranks() + rank_in_replica(); }
    /// Returns this rank's index along kDataAxes, among the ranks that hold the same weights.
    int data_rank() const { return dp_rank_ * shape_.degrees.cp + cp_rank(); }
    /// Returns this rank's index along kDataAxes or kExpertDataAxes.
    int copy_of(Axes axes) const {
        return axes == kExpertDataAxes ? rank_in_stage() / shape_.experts.ranks() : data_rank();
    }
    collective::ProcessGroup& ep() const { return group(Axis::ep); }
    /// Returns this rank's part of `size` heads, channels or tokens that are split over tp.
    Range tp_part(std::int64_t size) const { return part_of(size, tp_rank(), shape_.degrees.tp); }

    /// Returns the transport of every group of several ranks for the log: "tp by messages; gradients by NCCL
    /// 2.28.9: ...".
    std::string describe_transports() const;

private:
    friend class MeshBuilder;
    struct Entry {
        Axes axes;
        const char* name;
        std::unique_ptr<collective::ProcessGroup> group;
    };
    MeshShape shape_;
    int dp_rank_ = 0;
    std::vector<Entry> groups_;  ///< tp, cp, kv, tied, ep, data, edp
};

/// Returns the mesh of a section of one rank.
Mesh single_rank_mesh();
/// Builds the groups of this rank. Collective over `section`, which has the ranks of the section, or of its
/// stage, in their order; the backend outlives the mesh. `name` is the section's, for messages. `tied` is the
/// group along Axis::tied, of this rank and its counterpart in the other stage, where the shape says that
/// both hold copies of trained weights. `expert_nodes`: on which nodes the ranks along Axis::ep are, in each
/// group of them alike; absent: where they run. Throws Error(broken_invariant) if there are not dp x cp x tp
/// ranks.
Mesh make_mesh(const comm::Communicator& section, backend::Backend& backend, const MeshShape& shape,
               const std::string& name, std::unique_ptr<collective::ProcessGroup> tied = nullptr,
               collective::Sums sums = collective::Sums::automatic,
               const std::optional<collective::Nodes>& expert_nodes = {});

/// Builds the group along kDataAxes or kExpertDataAxes alone, for a section whose mesh has none because it is
/// not trainable. Collective over `section`.
std::unique_ptr<collective::ProcessGroup> make_data_group(const comm::Communicator& section,
                                                          backend::Backend& backend, const MeshShape& shape,
                                                          const std::string& name, collective::Sums sums,
                                                          Axes axes = kDataAxes);

using collective::LinkCost;
/// The links of the groups of a rank, for a meta mesh.
struct MeshLinks {
    LinkCost tp = {}, cp = {}, data = {}, tied = {};
    /// The node of each rank along kDataAxes, between which their group has the link `network`; within one it
    /// has `data`. Empty: all on one node.
    std::vector<int> data_nodes = {};
    LinkCost network = {};
    LinkCost ep = {};  ///< of the group along Axis::ep within a node
    /// As data_nodes, along Axis::ep and along kExpertDataAxes.
    std::vector<int> expert_nodes = {}, expert_data_nodes = {};
    /// How much the rank with most rows of experts exchanges along Axis::ep over the mean.
    double expert_imbalance = 1;
    /// Measured times, which count in the place of the links' for the collectives that they tell.
    collective::CollectiveTimes collectives = {};
    /// For these: on how many nodes the groups along tp (and kv), cp and tied are.
    int tp_nodes = 1, cp_nodes = 1, tied_nodes = 1;
    /// The places of ranks are not known: groups on several nodes are on as many as the numbers above tell,
    /// or on more where collectives take less.
    bool fewest_nodes = false;
    bool operator==(const MeshLinks&) const = default;
};
/// Returns the mesh of rank `rank` of a section, whose groups send nothing and count what they would send:
/// messages, bytes, and seconds by the cost of the links.
Mesh make_meta_mesh(int rank, const MeshShape& shape, const MeshLinks& links = {});
/// Returns the mesh of rank `rank` of a section for tasks that this process computes alone: its groups along
/// tp, cp, kv and ep are loopback groups (collective/process_group.hpp), and the others, which tasks do not
/// use, meta groups. `expert_nodes` as in MeshLinks. The backend outlives it.
Mesh make_loopback_mesh(int rank, const MeshShape& shape, const std::vector<int>& expert_nodes,
                        backend::Backend& backend);

}  // namespace maestro::parallel
