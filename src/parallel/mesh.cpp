#include "parallel/mesh.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "base/check.hpp"

namespace maestro::parallel {

/// Makes the groups of a mesh. Splitting a communicator is collective, so all ranks of the section make the
/// groups in the same order.
class MeshBuilder {
public:
    /// make(axes, rank, size) returns a group of `size` > 1 ranks in which this process has rank `rank`.
    using Make = std::function<std::unique_ptr<collective::ProcessGroup>(Axes axes, int rank, int size)>;
    static Mesh build(int rank, const MeshShape& shape, const Make& make) {
        const auto [cp, tp] = shape.degrees;
        Mesh mesh;
        mesh.shape_ = shape;
        mesh.dp_rank_ = rank / (cp * tp);
        const auto add = [&](Axes axes, const char* name, int group_rank, int size) {
            // A meta group of one rank does what any group of one rank does: nothing.
            mesh.groups_.push_back(
                {axes, name, size > 1 ? make(axes, group_rank, size) : collective::make_meta_group(0, 1)});
        };
        add(Axis::tp, "tp", rank % tp, tp);
        add(Axis::cp, "cp", rank / tp % cp, cp);
        add(Axis::kv, "kv", rank % tp % shape.kv_ranks(), shape.kv_ranks());
        add(Axis::tied, "tied embeddings", shape.tied.index, shape.tied.count);
        add(Axis::ep, "experts", rank % shape.experts.ranks(), shape.experts.ranks());
        // A frozen section has no gradients to reduce. Without the group its ranks keep one communicator
        // less.
        if (shape.trainable) add(kDataAxes, "gradients", rank / tp, shape.data_ranks());
        if (shape.trainable && shape.has_own_expert_data())
            add(kExpertDataAxes, "gradients of experts", rank / shape.experts.ranks(),
                shape.copies(kExpertDataAxes));
        return mesh;
    }
};

collective::ProcessGroup& Mesh::group(Axes axes) const {
    if (axes == kExpertDataAxes && !shape_.has_own_expert_data()) axes = kDataAxes;
    const auto at =
        std::find_if(groups_.begin(), groups_.end(), [&](const Entry& e) { return e.axes == axes; });
    MAESTRO_CHECK(at != groups_.end(), "the mesh has no group over these axes");
    return *at->group;
}

bool Mesh::has(Axes axes) const {
    return std::any_of(groups_.begin(), groups_.end(), [&](const Entry& e) { return e.axes == axes; });
}

std::string Mesh::describe_transports() const {
    std::string text;
    for (const Entry& e : groups_)
        if (e.group->size() > 1)
            text += fmt::format("{}{} by {}", text.empty() ? "" : "; ", e.name, e.group->transport());
    return text;
}

Mesh single_rank_mesh() {
    return make_meta_mesh(0, {});
}

Mesh make_mesh(const comm::Communicator& section, backend::Backend& backend, const MeshShape& shape,
               const std::string& name, std::unique_ptr<collective::ProcessGroup> tied, collective::Sums sums,
               const std::optional<collective::Nodes>& expert_nodes) {
    const auto [cp, tp] = shape.degrees;
    const int rank = section.rank(), replica_index = rank / (cp * tp);
    MAESTRO_CHECK(section.size() == shape.dp * cp * tp, "section {}: {} ranks for dp {}, cp {} and tp {}",
                  name, section.size(), shape.dp, cp, tp);
    const std::string replica = fmt::format("section {}, replica {}", name, replica_index);
    return MeshBuilder::build(rank, shape, [&](Axes axes, int at, int size) {
        if (axes == Axis::tied) {
            // The copies of frozen weights are read alone, so that only the order of the stages counts.
            if (!shape.trainable) return collective::make_meta_group(at, size);
            MAESTRO_CHECK(tied && tied->size() == size && tied->rank() == at,
                          "section {}: no group of the {} stages that hold copies", name, size);
            return std::move(tied);
        }
        // MPI_Comm_split makes a group of all ranks with the same colour: here those whose coordinates along
        // all other axes are equal. It is collective, so every rank splits along every axis.
        int colour = rank / tp;
        std::string members = replica + ", tp ranks";
        if (axes == Axis::cp) {
            colour = replica_index * tp + rank % tp;
            members = replica + ", cp ranks";
        } else if (axes == Axis::kv) {
            colour = rank / shape.kv_ranks();
            members = replica + ", ranks with copies of a KV head";
        } else if (axes == Axis::ep) {
            colour = rank / shape.experts.ranks();
            members = fmt::format("section {}, ranks that share experts, group {}", name, colour);
            comm::Communicator ranks = section.split(colour, rank, members);
            collective::Nodes nodes = expert_nodes ? *expert_nodes : collective::find_nodes(ranks);
            return collective::make_process_group(std::move(ranks), backend, sums, std::move(nodes));
        } else if (axes == kDataAxes || axes == kExpertDataAxes) {
            return make_data_group(section, backend, shape, name, sums, axes);
        }
        return collective::make_process_group(section.split(colour, rank, members), backend, sums);
    });
}

std::unique_ptr<collective::ProcessGroup> make_data_group(const comm::Communicator& section,
                                                          backend::Backend& backend, const MeshShape& shape,
                                                          const std::string& name, collective::Sums sums,
                                                          Axes axes) {
    const bool of_experts = axes == kExpertDataAxes;
    const int parts = of_experts ? shape.experts.ranks() : shape.degrees.tp, part = section.rank() % parts;
    std::string members = of_experts ? name + ", experts" : name;
    if (parts > 1) members += fmt::format(", {} {}", of_experts ? "ep" : "tp", part);
    comm::Communicator ranks = section.split(part, section.rank(), members);
    // All weights of a rank pass through this group, whose ranks are usually on several nodes.
    collective::Nodes nodes = collective::find_nodes(ranks);
    return collective::make_process_group(std::move(ranks), backend, sums, std::move(nodes));
}

Mesh make_meta_mesh(int rank, const MeshShape& shape, const MeshLinks& links) {
    // kv lies within tp and uses its link.
    return MeshBuilder::build(rank, shape, [&](Axes axes, int at, int size) {
        const bool of_data = axes == kDataAxes || axes == kExpertDataAxes;
        LinkCost link = of_data              ? links.data
                        : axes == Axis::cp   ? links.cp
                        : axes == Axis::ep   ? links.ep
                        : axes == Axis::tied ? links.tied
                                             : links.tp;
        LinkCost network = links.network;
        collective::MeasuredGroup measured{.times = links.collectives};
        if (axes == Axis::ep) {
            link.bandwidth /= links.expert_imbalance;
            network.bandwidth /= links.expert_imbalance;
            measured.load = links.expert_imbalance;
        }
        const std::vector<int> on_one_node, &nodes = axes == kDataAxes         ? links.data_nodes
                                                     : axes == kExpertDataAxes ? links.expert_data_nodes
                                                     : axes == Axis::ep        ? links.expert_nodes
                                                                               : on_one_node;
        if (!nodes.empty())
            return collective::make_meta_group(at, collective::Nodes(nodes), link, network, measured);
        const int spread = axes == Axis::cp                       ? links.cp_nodes
                           : axes == Axis::tied                   ? links.tied_nodes
                           : axes == Axis::tp || axes == Axis::kv ? links.tp_nodes
                                                                  : 1;
        measured.nodes = std::min(spread, size);
        if (links.fewest_nodes && spread > 1) measured.most_nodes = size;
        return collective::make_meta_group(at, size, link, measured);
    });
}

Mesh make_loopback_mesh(int rank, const MeshShape& shape, const std::vector<int>& expert_nodes,
                        backend::Backend& backend) {
    return MeshBuilder::build(rank, shape, [&](Axes axes, int at, int size) {
        if (axes == kDataAxes || axes == kExpertDataAxes || axes == Axis::tied)
            return collective::make_meta_group(at, size);
        const bool by_nodes = axes == Axis::ep && !expert_nodes.empty();
        return collective::make_loopback_group(
            at, by_nodes ? collective::Nodes(expert_nodes) : collective::Nodes(size), backend);
    });
}

}  // namespace maestro::parallel
