// The process groups of one rank in a section, by the axes along which the section's ranks share the work.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/context_kind.hpp"
#include "base/shard.hpp"
#include "collective/process_group.hpp"
#include "parallel/partition.hpp"

namespace maestro::parallel {

/// What the ranks along an axis share: samples (dp), the rows of a micro-batch (cp), heads, channels and the
/// vocabulary (tp). `kv` lies within tp: where there are more tp ranks than key heads, ranks that follow each
/// other hold copies of the same key head.
enum class Axis : unsigned { dp = 1, cp = 2, tp = 4, kv = 8 };

/// A set of axes. It names a process group: the ranks whose coordinates differ along these axes alone.
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

/// The ranks that hold the same weights. Their gradients are summed and they share the optimizer's states.
inline constexpr Axes kDataAxes = Axis::dp | Axis::cp;
/// The axes within a replica along which ranks may hold copies of the same weights. Each of them computes a
/// part of the gradient.
inline constexpr Axis kReplicaAxes[] = {Axis::tp, Axis::kv};

/// Of a section, whose ranks are ordered [dp][cp][tp], tp fastest.
struct MeshShape {
    int dp = 1;
    Degrees degrees = {};
    ContextKind context_kind = ContextKind::ring;
    int kv_heads = 1;       ///< of the model
    bool trainable = true;  ///< gradients are summed, which takes a group over kDataAxes

    int data_ranks() const { return dp * degrees.cp; }
    /// Ranks that hold copies of the same key heads.
    int kv_ranks() const { return degrees.tp > kv_heads ? degrees.tp / kv_heads : 1; }
};

/// Owns the groups. Where a degree is 1 the group has this rank alone, and its collectives move nothing.
class Mesh {
public:
    const MeshShape& shape() const { return shape_; }
    Degrees degrees() const { return shape_.degrees; }
    ContextKind context_kind() const { return shape_.context_kind; }

    /// tp, cp, kv, or kDataAxes where the shape is trainable.
    collective::ProcessGroup& group(Axes axes) const;
    bool has(Axes axes) const;
    collective::ProcessGroup& tp() const { return *groups_[0].group; }
    collective::ProcessGroup& cp() const { return *groups_[1].group; }

    int tp_rank() const { return tp().rank(); }
    int cp_rank() const { return cp().rank(); }
    int rank_in_replica() const { return cp_rank() * shape_.degrees.tp + tp_rank(); }
    /// Among the ranks that hold the same weights.
    int data_rank() const { return dp_rank_ * shape_.degrees.cp + cp_rank(); }
    /// This rank's part of `size` things that the tp ranks share.
    Range tp_part(std::int64_t size) const { return part_of(size, tp_rank(), shape_.degrees.tp); }

    /// "tp by messages; gradients by NCCL 2.28.9: ...": the groups of several ranks, for the log.
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
    std::vector<Entry> groups_;  ///< tp, cp, kv, data
};

/// A section of one rank.
Mesh single_rank_mesh();
/// Collective over `section`, the ranks of the section in their order. `name` of the section, for messages.
Mesh make_mesh(const comm::Communicator& section, backend::Backend& backend, const MeshShape& shape,
               const std::string& name);

/// Collective over `section`: the group over kDataAxes alone, which a mesh has only where the shape is
/// trainable.
std::unique_ptr<collective::ProcessGroup> make_data_group(const comm::Communicator& section,
                                                          backend::Backend& backend, const MeshShape& shape,
                                                          const std::string& name);

/// What a message costs: seconds, and bytes per second (0: no time per byte).
struct LinkCost {
    double latency_s = 0, bandwidth = 0;
};
struct MeshLinks {
    LinkCost tp, cp, data;
};
/// A mesh whose groups send nothing and count what they would send: that of rank `rank` of the section's
/// first replica.
Mesh make_meta_mesh(int rank, const MeshShape& shape, const MeshLinks& links = {});

}  // namespace maestro::parallel
