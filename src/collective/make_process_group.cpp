#include <fmt/format.h>

#include <utility>
#include <vector>

#include "collective/implementations.hpp"
#include "transport/choice.hpp"

namespace maestro::collective {

namespace {

using transport::Method;

/// The choice of the first rank, on all ranks. Asked through a communicator of its own, so that the group's
/// carries nothing but tensors.
transport::Choice agree_on_method(const comm::Communicator& members, const backend::Backend& backend) {
    const comm::Communicator asked =
        members.split(0, members.rank(), fmt::format("the devices of {}", members.name()));
    const std::vector<std::string> gpus = asked.gather(backend.gpu());
    std::string message;  // the method, then the reason
    if (asked.rank() == 0) {
        const transport::Choice choice = transport::choose_for_group(gpus);
        message = static_cast<char>(choice.method) + choice.reason;
    }
    asked.broadcast(message);
    return {static_cast<Method>(message.front()), message.substr(1)};
}

}  // namespace

std::unique_ptr<ProcessGroup> make_process_group(comm::Communicator members, backend::Backend& backend) {
    if (!backend::kCuda) return make_mpi_group(std::move(members), kMaxMessage, "messages");
    if (members.size() == 1) return make_mpi_group(std::move(members), kMaxMessage, "one rank");
    const transport::Choice choice = agree_on_method(members, backend);
    const std::string words = fmt::format("{}: {}", transport::describe(choice.method), choice.reason);
    if (choice.method == Method::nccl) return make_nccl_group(std::move(members), backend, words);
    if (backend.stream()) return make_staged_group(std::move(members), backend, words);
    // A rank without a GPU cuts its messages as those with one do.
    return make_mpi_group(std::move(members),
                          choice.method == Method::staged_messages ? kMaxStagedMessage : kMaxMessage, words);
}

}  // namespace maestro::collective
