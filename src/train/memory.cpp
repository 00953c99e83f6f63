#include "train/memory.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "comm/memory.hpp"

namespace maestro::train {

namespace {

constexpr double kShare = 0.8;  ///< of the free memory that open windows may fill; the rest is for files, MPI

/// Collective; on all ranks alike, for the node that lacks most.
void refuse_what_does_not_fit(const Launch& launch, const workload::MemoryPlan& plan, double needed,
                              double available) {
    struct Node {
        double needed, available;
        char host[64];
    };
    Node own{launch.world.same_node().sum(needed), available, {}};
    launch.topology.host.copy(own.host, sizeof own.host - 1);
    const std::vector<Node> nodes = launch.world.allgather(own);
    const auto worst = std::max_element(nodes.begin(), nodes.end(), [](const Node& a, const Node& b) {
        return a.needed - a.available < b.needed - b.available;
    });
    if (worst->needed <= worst->available) return;
    std::string list;
    for (const graph::Section& section : launch.deck.graph.sections)
        list += fmt::format("\n  section {}: {}", section.name,
                            workload::memory_of(plan, launch.deck.graph, section.first_rank).describe());
    throw Error(ExitCode::device_memory,
                fmt::format("the ranks on {} need {:.0f} MiB of memory, {:.0f} MiB are free there; use a "
                            "smaller window or micro_batch, train.recompute = \"layer\", or fewer ranks a "
                            "node. A rank of each section needs:{}",
                            worst->host, worst->needed / (1 << 20), worst->available / (1 << 20), list),
                Scope::all_ranks);
}

}  // namespace

void fit_memory(const Launch& launch, workload::MemoryPlan& plan) {
    const auto available = static_cast<double>(comm::available_memory());
    const double share = kShare * available / launch.topology.ranks_on_node;
    if (launch.world.size() != launch.deck.graph.world) {  // a dry run in one process, as if on every rank
        workload::choose_windows(plan, launch.deck.graph, share);
        refuse_what_does_not_fit(
            launch, plan,
            workload::memory_of(plan, launch.deck.graph, workload::fullest_rank(plan, launch.deck.graph))
                .total(),
            available);
        return;
    }
    std::vector<double> least;
    for (const int window : workload::windows_within(plan, launch.deck.graph, launch.world.rank(), share))
        least.push_back(-window);
    launch.world.allreduce_max(std::span(least));
    for (std::size_t s = 0; s < least.size(); ++s)
        plan.set_window(static_cast<int>(s), static_cast<int>(-least[s]), launch.deck.graph);
    refuse_what_does_not_fit(
        launch, plan, workload::memory_of(plan, launch.deck.graph, launch.world.rank()).total(), available);
}

std::string describe_use(const comm::Communicator& world, const MemoryUse& mine) {
    const std::vector<MemoryUse> all = world.allgather(mine);
    const auto fullest = std::max_element(all.begin(), all.end(),
                                          [](const auto& a, const auto& b) { return a.planned < b.planned; });
    constexpr double kMiB = 1 << 20;
    return fmt::format(
        "memory of rank {}: {:.1f} MiB planned, {:.1f} of it buffers and windows; they took {:.1f} MiB, "
        "{:.1f} of it used; the process grew by {:.1f} MiB",
        fullest - all.begin(), fullest->planned / kMiB, fullest->planned_buffers / kMiB,
        fullest->buffers / kMiB, fullest->used / kMiB, fullest->resident / kMiB);
}

}  // namespace maestro::train
