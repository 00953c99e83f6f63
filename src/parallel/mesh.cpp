#include "parallel/mesh.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/check.hpp"

namespace maestro::parallel {

/// Makes the groups of a mesh in one order, which all ranks of the section share.
class MeshBuilder {
public:
    /// `make(axes, rank, size)` makes a group of several ranks, in which this one has that rank.
    using Make = std::function<std::unique_ptr<collective::ProcessGroup>(Axes axes, int rank, int size)>;
    static Mesh build(int rank, const MeshShape& shape, const Make& make) {
        const auto [cp, tp] = shape.degrees;
        Mesh mesh;
        mesh.shape_ = shape;
        mesh.dp_rank_ = rank / (cp * tp);
        const auto add = [&](Axes axes, const char* name, int at, int size) {
            mesh.groups_.push_back(
                {axes, name, size > 1 ? make(axes, at, size) : collective::make_meta_group(0, 1)});
        };
        add(Axis::tp, "tp", rank % tp, tp);
        add(Axis::cp, "cp", rank / tp % cp, cp);
        add(Axis::kv, "shared keys", rank % tp % shape.kv_ranks(), shape.kv_ranks());
        if (shape.trainable) add(kDataAxes, "gradients", rank / tp, shape.data_ranks());
        return mesh;
    }
};

collective::ProcessGroup& Mesh::group(Axes axes) const {
    const auto at =
        std::find_if(groups_.begin(), groups_.end(), [&](const Entry& e) { return e.axes == axes; });
    MAESTRO_CHECK(at != groups_.end(), "a group that the mesh does not have");
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
               const std::string& name) {
    const auto [cp, tp] = shape.degrees;
    const int rank = section.rank(), lane = rank / (cp * tp);
    MAESTRO_CHECK(section.size() == shape.dp * cp * tp, "section {}: {} ranks for dp {}, cp {} and tp {}",
                  name, section.size(), shape.dp, cp, tp);
    const std::string replica = fmt::format("section {}, replica {}", name, lane);
    return MeshBuilder::build(rank, shape, [&](Axes axes, int, int) {
        int colour = rank / tp;  // of all ranks with the same other coordinates
        std::string what = replica + ", tp ranks";
        if (axes == Axis::cp) {
            colour = lane * tp + rank % tp;
            what = replica + ", cp ranks";
        } else if (axes == Axis::kv) {
            colour = rank / shape.kv_ranks();
            what = replica + ", ranks that share key heads";
        } else if (axes == kDataAxes) {
            return make_data_group(section, backend, shape, name);
        }
        return collective::make_process_group(section.split(colour, rank, what), backend);
    });
}

std::unique_ptr<collective::ProcessGroup> make_data_group(const comm::Communicator& section,
                                                          backend::Backend& backend, const MeshShape& shape,
                                                          const std::string& name) {
    const int tp = section.rank() % shape.degrees.tp;
    return collective::make_process_group(
        section.split(tp, section.rank(), shape.degrees.tp > 1 ? fmt::format("{}, tp {}", name, tp) : name),
        backend);
}

Mesh make_meta_mesh(int rank, const MeshShape& shape, const MeshLinks& links) {
    return MeshBuilder::build(rank, shape, [&](Axes axes, int at, int size) {
        const LinkCost& link = axes == kDataAxes ? links.data : axes == Axis::cp ? links.cp : links.tp;
        return collective::make_meta_group(at, size, link.latency_s, link.bandwidth);
    });
}

}  // namespace maestro::parallel
