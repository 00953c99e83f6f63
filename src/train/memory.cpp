#include "train/memory.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "channel/spec.hpp"
#include "collective/ways.hpp"
#include "comm/memory.hpp"
#include "graph/grid.hpp"

namespace maestro::train {

namespace {

constexpr double kShare = 0.8;  ///< of the free memory that open windows may fill; the rest is for files, MPI

constexpr const char* kTakesLess =
    "use a smaller window or micro_batch, train.recompute = \"layer\", more ranks for a section (layout.tp "
    "for "
    "weights and activations, layout.cp for activations, layout.dp for the optimizer's moments), or fewer "
    "ranks a node";

/// Memory that several ranks share: a node's, or a GPU's.
struct Store {
    double needed, available;
    char host[64];
    int gpu;  ///< -1: the node's
};

std::string name_of(const Store& store) {
    return store.gpu < 0 ? std::string(store.host) : fmt::format("GPU {} of {}", store.gpu, store.host);
}

/// Of a rank's share, what lies in that memory. A GPU that no rank shares may send by NCCL.
double needed_of(const Launch& launch, const workload::MemoryPlan& plan, int rank) {
    const workload::RankMemory memory = workload::memory_of(plan, launch.deck.graph, rank);
    if (!launch.device.gpu) return memory.total();
    double sending = 0;
    if (launch.device.sharers == 1 && launch.deck.run.transport == "auto" &&
        !collective::nccl_version().empty())
        for (const channel::ChannelSpec& spec : plan.channels)
            sending += static_cast<double>(channel::nccl_bytes(spec, rank));
    return memory.buffers() + sending;
}

/// Collective; on all ranks alike, for the memory that lacks most.
void refuse_what_does_not_fit(const Launch& launch, const workload::MemoryPlan& plan, double needed,
                              double available) {
    Store own{needed, available, {}, launch.device.gpu ? launch.device.number : -1};
    launch.topology.host.copy(own.host, sizeof own.host - 1);
    std::vector<Store> stores;
    for (const Store& rank : launch.world.allgather(own)) {
        const auto at = std::find_if(stores.begin(), stores.end(),
                                     [&](const Store& s) { return name_of(s) == name_of(rank); });
        if (at == stores.end())
            stores.push_back(rank);
        else
            at->needed += rank.needed;
    }
    const auto worst = std::max_element(stores.begin(), stores.end(), [](const Store& a, const Store& b) {
        return a.needed - a.available < b.needed - b.available;
    });
    if (worst->needed <= worst->available) return;
    std::string list;
    for (const graph::Section& section : launch.deck.graph.sections)
        list += fmt::format("\n  section {}: {}", section.name,
                            workload::memory_of(plan, launch.deck.graph, section.first_rank).describe());
    throw Error(ExitCode::device_memory,
                fmt::format("the ranks on {} need {:.0f} MiB of memory, {:.0f} MiB are free there; {}. "
                            "A rank of each section needs:{}",
                            name_of(*worst), worst->needed / (1 << 20), worst->available / (1 << 20),
                            kTakesLess, list),
                Scope::all_ranks);
}

}  // namespace

void fit_memory(const Launch& launch, workload::MemoryPlan& plan) {
    const bool gpu = launch.device.gpu;
    const auto available = gpu ? static_cast<double>(backend::free_memory(launch.device))
                               : static_cast<double>(comm::available_memory());
    const double share = kShare * available / (gpu ? launch.device.sharers : launch.topology.ranks_on_node);
    if (launch.world.size() != launch.deck.graph.world) {  // a dry run in one process, as if on every rank
        workload::choose_windows(plan, launch.deck.graph, share);
        refuse_what_does_not_fit(launch, plan,
                                 needed_of(launch, plan, workload::fullest_rank(plan, launch.deck.graph)),
                                 available);
        return;
    }
    std::vector<double> least;
    for (const int window : workload::windows_within(plan, launch.deck.graph, launch.world.rank(), share))
        least.push_back(-window);
    launch.world.allreduce_max(std::span(least));
    for (std::size_t s = 0; s < least.size(); ++s)
        plan.set_window(static_cast<int>(s), static_cast<int>(-least[s]), launch.deck.graph);
    refuse_what_does_not_fit(launch, plan, needed_of(launch, plan, launch.world.rank()), available);
}

void in_planned_memory(const Launch& launch, const workload::MemoryPlan& plan,
                       const std::function<void()>& action) {
    try {
        action();
    } catch (const Error& error) {
        if (error.code() != ExitCode::device_memory || error.scope() != Scope::this_rank) throw;
        const graph::SectionGraph& graph = launch.deck.graph;
        const int rank = launch.world.rank();
        std::string list;
        for (std::size_t s = 0; s < graph.sections.size(); ++s)
            if (graph::place_of(graph.sections[s], rank))
                list += fmt::format("\n  section {}: {}", graph.sections[s].name,
                                    workload::describe(plan.sections[s]));
        throw Error(
            error.code(),
            fmt::format("{}. The plan fits into what was free at the start: end what else takes memory "
                        "there, or {}. Planned for rank {}: {}{}",
                        error.what(), kTakesLess, rank, workload::memory_of(plan, graph, rank).describe(),
                        list));
    }
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
