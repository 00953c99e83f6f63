// How the tensors of a group travel: decided here and nowhere else, by one rank for all, from where they are.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>
#include <vector>

#include "collective/ways.hpp"

namespace maestro::collective {

namespace {

enum class Way : char { host = 'h', mixed = 'm', staged = 's', nccl = 'n' };

struct Choice {
    Way way = Way::host;
    std::string reason;
};

/// `gpus`: Backend::gpu() of each rank.
Choice choose(const std::vector<std::string>& gpus) {
    const Placing placing = placing_of(gpus);
    switch (placing.kind) {
        case Placing::Kind::none:
            return {Way::host, "messages of MPI: " + placing.reason};
        case Placing::Kind::some:
            return {Way::mixed, "messages of MPI through pinned memory: " + placing.reason};
        case Placing::Kind::shared:
        case Placing::Kind::apart:
            return {Way::staged, "messages of MPI through pinned memory: " + placing.reason};
        case Placing::Kind::nccl:
            break;
    }
    return {Way::nccl, fmt::format("{}: {}", nccl_version(), placing.reason)};
}

/// The first rank's choice, on all. By a communicator of its own, so that the group's carries tensors alone.
Choice agreed(const comm::Communicator& members, const backend::Backend& backend) {
    const comm::Communicator asked =
        members.split(0, members.rank(), fmt::format("the devices of {}", members.name()));
    const std::vector<std::string> gpus = asked.gather(backend.gpu());
    std::string words;
    if (asked.rank() == 0) {
        const Choice chosen = choose(gpus);
        words = std::string(1, static_cast<char>(chosen.way)) + chosen.reason;
    }
    asked.broadcast(words);
    return {static_cast<Way>(words.front()), words.substr(1)};
}

}  // namespace

Placing placing_of(std::span<const std::string> gpus) {
    using Kind = Placing::Kind;
    const std::size_t ranks = gpus.size();
    const auto on_host = static_cast<std::size_t>(std::count(gpus.begin(), gpus.end(), ""));
    if (on_host == ranks) return {Kind::none, "no rank has a GPU"};
    if (on_host > 0) return {Kind::some, fmt::format("{} of {} ranks have no GPU", on_host, ranks)};
    if (const std::size_t different = std::set(gpus.begin(), gpus.end()).size(); different < ranks)
        return {Kind::shared,
                fmt::format("{} ranks share {} GPU{}", ranks, different, different == 1 ? "" : "s")};
    if (nccl_version().empty()) return {Kind::apart, "this program was built without NCCL"};
    return {Kind::nccl, fmt::format("each of {} ranks has a GPU of its own", ranks)};
}

std::unique_ptr<Group> make_group(comm::Communicator members, backend::Backend& backend) {
    if (!backend::kCuda) return make_message_group(std::move(members), kLargestPiece, "messages of MPI");
    if (members.size() == 1) return make_message_group(std::move(members), kLargestPiece, "one rank alone");
    Choice choice = agreed(members, backend);
    if (choice.way == Way::nccl)
        return make_nccl_group(std::move(members), backend, std::move(choice.reason));
    if (backend.stream()) return make_staged_group(std::move(members), backend, std::move(choice.reason));
    return make_message_group(std::move(members), choice.way == Way::mixed ? kStagedPiece : kLargestPiece,
                              std::move(choice.reason));
}

}  // namespace maestro::collective
