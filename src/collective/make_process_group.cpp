#include <fmt/format.h>

#include <utility>
#include <vector>

#include "collective/implementations.hpp"
#include "comm/topology.hpp"
#include "transport/choice.hpp"

namespace maestro::collective {

namespace {

using transport::Method;

/// Rank 0 of the group chooses for all. The question travels on a separate communicator, so that the group's
/// own carries nothing but tensors, which tests of traffic count.
transport::Choice agree_on_method(const comm::Communicator& members, const backend::Backend& backend) {
    const comm::Communicator separate =
        members.split(0, members.rank(), fmt::format("the devices of {}", members.name()));
    const std::vector<std::string> gpus = separate.gather(backend.gpu());
    std::string message;  // the method, then the reason
    if (separate.rank() == 0) {
        const transport::Choice choice = transport::choose_for_group(gpus);
        message = static_cast<char>(choice.method) + choice.reason;
    }
    separate.broadcast(message);
    return {static_cast<Method>(message.front()), message.substr(1)};
}

}  // namespace

std::unique_ptr<ProcessGroup> make_process_group(comm::Communicator members, backend::Backend& backend,
                                                 Sums sums, std::optional<Nodes> known) {
    Nodes nodes = known ? *known : Nodes(members.size());
    // Without CUDA no rank has a GPU: there is nothing to agree on, and no need for another communicator.
    if (!backend::kCuda) return make_mpi_group(std::move(members), std::move(nodes), kMaxMessage, "messages");
    if (members.size() == 1)
        return make_mpi_group(std::move(members), std::move(nodes), kMaxMessage, "one rank");
    const transport::Choice choice = agree_on_method(members, backend);
    const std::string description = fmt::format("{}: {}", transport::describe(choice.method), choice.reason);
    if (choice.method == Method::nccl)
        return make_nccl_group(
            std::move(members), std::move(nodes), backend, sums,
            sums == Sums::ordered ? description + ", sums in the order of ranks" : description);
    if (backend.stream())
        return make_staged_group(std::move(members), std::move(nodes), backend, description);
    // Both sides of a message must cut it into the same segments, so a rank without a GPU cuts as the others
    // do.
    return make_mpi_group(std::move(members), std::move(nodes),
                          choice.method == Method::staged_messages ? kMaxStagedMessage : kMaxMessage,
                          description);
}

Nodes find_nodes(const comm::Communicator& members) {
    // The question travels on separate communicators, as above.
    const comm::Communicator separate =
        members.split(0, members.rank(), fmt::format("the nodes of {}", members.name()));
    return Nodes(comm::lowest_on_nodes(separate, separate.same_node()));
}

}  // namespace maestro::collective
