#include "transport/choice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.hpp"

namespace maestro::transport {

std::string describe(Method method) {
    switch (method) {
        case Method::pointer:
            return "a pointer";
        case Method::shared_memory:
            return "shared memory";
        case Method::messages:
        case Method::gpu_mpi:
            return "messages";
        case Method::staged_messages:
            return "messages through pinned memory";
        case Method::nccl:
            return nccl_version();
    }
    return "?";
}

GpuPlacement gpu_placement(std::span<const std::string> gpus) {
    using Kind = GpuPlacement::Kind;
    const std::size_t ranks = gpus.size();
    const auto without = static_cast<std::size_t>(std::count(gpus.begin(), gpus.end(), ""));
    if (without == ranks) return {Kind::none, "no rank has a GPU"};
    // An edge and a group use one method on all their ranks, so one rank without a GPU decides for all.
    if (without > 0) return {Kind::some, fmt::format("{} of {} ranks have no GPU", without, ranks)};
    // NCCL refuses a communicator that has two ranks on one GPU.
    if (const std::size_t different = std::set(gpus.begin(), gpus.end()).size(); different < ranks)
        return {Kind::shared,
                fmt::format("{} ranks share {} GPU{}", ranks, different, different == 1 ? "" : "s")};
    if (nccl_version().empty()) return {Kind::exclusive_no_nccl, "this program was built without NCCL"};
    return {Kind::exclusive, fmt::format("each of {} ranks has a GPU to itself", ranks)};
}

Choice choose_for_group(std::span<const std::string> gpus) {
    const GpuPlacement placement = gpu_placement(gpus);
    if (placement.kind == GpuPlacement::Kind::none) return {Method::messages, placement.reason};
    if (placement.kind == GpuPlacement::Kind::exclusive) return {Method::nccl, placement.reason};
    return {Method::staged_messages, placement.reason};
}

Choice choose_for_edge(const EdgeRanks& ranks, TransportRequest request) {
    if (ranks.same_rank) return {Method::pointer, "both ends are one rank"};
    if (request == TransportRequest::messages) return {Method::messages, "run.transport asks for it"};
    // A request of the deck for one method wins over the GPUs. An emulated link needs the host, which
    // compares each flag's delivery time with its clock.
    std::string why_not_direct;  // from GPU to GPU, if there are GPUs
    if (request == TransportRequest::automatic) {
        using Kind = GpuPlacement::Kind;
        const GpuPlacement placement = gpu_placement(ranks.gpus);
        const bool all = placement.kind != Kind::none && placement.kind != Kind::some;
        if (all && ranks.mpi_reaches_gpus && !ranks.emulated)
            return {Method::gpu_mpi, "MPI reaches the GPUs of all its ranks"};
        if (placement.kind == Kind::some) why_not_direct = placement.reason + " and ";
        if (all) why_not_direct = ranks.emulated ? "its link is emulated and " : "MPI reaches no GPUs and ";
    }
    // Shared memory before messages: a put is one copy and needs neither thread nor message. Between nodes
    // MPI has no window that works: see make_mpi_window().
    const std::set<std::string> hosts(ranks.hosts.begin(), ranks.hosts.end());
    if (hosts.size() == 1)
        return {Method::shared_memory, why_not_direct + "all its ranks are on " + *hosts.begin()};
    const std::string where = fmt::format("{}its ranks are on {}", why_not_direct, fmt::join(hosts, ", "));
    if (request == TransportRequest::shared_memory)
        throw Error(
            ExitCode::bad_deck,
            fmt::format("run.transport: \"window\" needs memory that all ranks of an edge share, and edge "
                        "{} leaves the node ({}); set it to \"auto\" or \"messages\"",
                        ranks.edge, where),
            Scope::all_ranks);
    return {Method::messages, where};
}

}  // namespace maestro::transport
