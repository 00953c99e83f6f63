#include "train/setup/memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "backend/gpus.hpp"
#include "base/as_error.hpp"
#include "comm/agree.hpp"
#include "comm/environment.hpp"
#include "comm/memory.hpp"
#include "graph/grid.hpp"
#include "transport/choice.hpp"
#include "workload/memory_pools.hpp"
#include "workload/rank_device.hpp"

namespace maestro::train {

namespace {

using workload::MemoryClaim;
using workload::MemoryPool;

/// Collective. Returns which memory this rank shares, and how much of it is free once every rank has its CUDA
/// context.
MemoryClaim claim_of(const RunContext& context) {
    const backend::Device& device = context.device;
    MemoryClaim claim;
    const auto set_text = [](auto& field, const std::string& text) {
        text.copy(field.data(), field.size() - 1);
    };
    set_text(claim.host, context.topology.host);
    comm::agree(context.world, [&] {  // on all ranks that share a GPU, before the first of them looks
        if (device.gpu) backend::open_context(device);
    });
    if (device.gpu) {
        set_text(claim.memory, backend::identity_of_gpu(device.number));
        set_text(claim.bus, backend::bus_of_gpu(device.number));
        claim.gpu = device.number;
        claim.free = static_cast<double>(backend::free_memory(device));
    } else {
        set_text(claim.memory, context.topology.host);
        claim.free = static_cast<double>(comm::available_memory());
    }
    return claim;
}

/// What a rank needs of its node's memory besides the claim above: with a GPU, what is on its host.
MemoryClaim host_claim(const RunContext& context, double needed) {
    MemoryClaim claim{.free = static_cast<double>(comm::available_memory()), .needed = needed};
    context.topology.host.copy(claim.host.data(), claim.host.size() - 1);
    context.topology.host.copy(claim.memory.data(), claim.memory.size() - 1);
    return claim;
}

/// `pool`: the memory of this rank's GPU. NCCL needs a GPU for each rank, so it is not used where all ranks
/// share one.
workload::Libraries libraries_of(const RunContext& context, const MemoryPool& pool) {
    if (!context.device.gpu) return {};
    const bool one_for_all = pool.ranks > 1 && pool.ranks == context.world.size();
    const backend::LibraryMemory memory =
        backend::library_memory_of_gpu(context.device.number, context.device.gemm);
    return {.workspace = static_cast<double>(memory.workspace),
            .reserve = static_cast<double>(memory.reserve),
            .link = one_for_all ? 0.0 : static_cast<double>(transport::nccl_connection_bytes()),
            .edges = context.deck.run.transport == "auto" && comm::reaches_gpus()};
}

/// Collective. Throws on all ranks the same error, about the memory that lacks most.
void refuse_what_does_not_fit(const RunContext& context, const workload::MemoryPlan& plan, MemoryClaim claim,
                              int rank) {
    claim.needed = workload::memory_of(plan, context.scenario.graph, rank).needed();
    std::string lack = workload::shortage(workload::memory_pools_of(context.world.allgather(claim)));
    // On every rank, because some may have no GPU. Those have counted everything already.
    if (lack.empty()) {
        const double on_host = workload::memory_of(plan, context.scenario.graph, rank).on_host();
        lack = workload::shortage(
            workload::memory_pools_of(context.world.allgather(host_claim(context, on_host))));
    }
    if (lack.empty()) return;
    throw Error(ExitCode::device_memory,
                workload::refusal(lack, context.memory_advice, plan, context.scenario.graph),
                Scope::all_ranks);
}

}  // namespace

workload::RankDevice fit_memory(const RunContext& context, workload::MemoryPlan& plan) {
    const graph::SectionGraph& graph = context.scenario.graph;
    // The first to wait: measuring may have taken some ranks much longer, and here their heartbeats count.
    const MemoryClaim claim = claim_of(context);
    // Collective, so called on every rank. Those with a GPU plan the GPU's memory, which holds no messages.
    std::vector<channel::ChannelSpec> marked = plan.channels;
    channel::mark_messages(context.world, marked, workload::transport_request(context.deck.run));
    if (!context.device.gpu) plan.channels = std::move(marked);
    const std::vector<MemoryPool> pools = workload::memory_pools_of(context.world.allgather(claim));
    const MemoryPool& pool = workload::memory_pool_of(pools, claim);
    plan.libraries = libraries_of(context, pool);
    const workload::RankDevice device{
        .name = "this machine",
        .gpu = context.device.gpu,
        .traits = backend::traits_of(context.device, context.topology.threads),
        .memory = pool.free / (context.device.gpu ? pool.ranks : context.topology.ranks_on_node)};
    const double share = device.window_bytes();
    if (context.world.size() != graph.world) {  // a dry run in one process, as if on every rank
        workload::choose_windows(plan, graph, share);
        refuse_what_does_not_fit(context, plan, claim, workload::max_memory_rank(plan, graph));
        return device;
    }
    // All ranks have to take the same windows: the smallest that any rank has room for, by a maximum of the
    // negative numbers.
    std::vector<double> negative;
    for (const int window : workload::windows_within(plan, graph, context.world.rank(), share))
        negative.push_back(-window);
    context.world.allreduce_max(std::span(negative));
    for (std::size_t s = 0; s < negative.size(); ++s)
        plan.set_window(static_cast<int>(s), static_cast<int>(-negative[s]), graph);
    refuse_what_does_not_fit(context, plan, claim, context.world.rank());
    return device;
}

void in_planned_memory(const RunContext& context, const workload::MemoryPlan& plan,
                       const std::function<void()>& action) {
    try {
        action();
    } catch (const std::exception& thrown) {
        const Error error = as_error(thrown);
        if (error.code() != ExitCode::device_memory || error.scope() != Scope::this_rank) throw;
        const graph::SectionGraph& graph = context.scenario.graph;
        const int rank = context.world.rank();
        std::string list;
        for (int stage = 0; stage < static_cast<int>(graph.stages.size()); ++stage)
            if (graph::holds(graph, stage, rank))
                list += fmt::format("\n  section {}: {}", graph.stage_name(stage),
                                    workload::describe(plan.stages[stage]));
        throw Error(
            error.code(),
            fmt::format("{}. The plan fits into what was free at the start: end what else takes memory "
                        "there, or {}. Planned for rank {}: {}{}",
                        error.what(), context.memory_advice, rank,
                        workload::memory_of(plan, graph, rank).describe(), list));
    }
}

void allocate_on_all_ranks(const RunContext& context, const workload::MemoryPlan& plan,
                           const std::function<void()>& action) {
    comm::agree(context.world, [&] { in_planned_memory(context, plan, action); });
}

std::vector<std::string> describe_use(const comm::Communicator& world, const graph::SectionGraph& graph,
                                      const MemoryUse& mine) {
    const std::vector<MemoryUse> all = world.allgather(mine);
    const auto fullest_of = [&](const auto& counts) {
        int fullest = -1;
        for (int rank = 0; rank < world.size(); ++rank)
            if (counts(rank) && (fullest < 0 || all[rank].planned > all[fullest].planned)) fullest = rank;
        return fullest;
    };
    std::vector<int> ranks{fullest_of([](int) { return true; })};
    // Of a pipeline any stage may be the fullest, and each has other needs.
    for (int stage = 0; stage < static_cast<int>(graph.stages.size()); ++stage) {
        if (graph.section_of(stage).layout.pp == 1) continue;
        const int fullest = fullest_of([&](int rank) { return graph::holds(graph, stage, rank); });
        if (std::find(ranks.begin(), ranks.end(), fullest) == ranks.end()) ranks.push_back(fullest);
    }
    constexpr double kMiB = 1 << 20;
    std::vector<std::string> lines;
    for (const int rank : ranks)
        lines.push_back(fmt::format(
            "memory of rank {}: {:.1f} MiB planned, {:.1f} of it buffers and windows; {:.1f} MiB allocated "
            "for these, {:.1f} of it used; the process grew by {:.1f} MiB",
            rank, all[rank].planned / kMiB, all[rank].planned_buffers / kMiB, all[rank].buffers / kMiB,
            all[rank].used / kMiB, all[rank].resident / kMiB));
    return lines;
}

}  // namespace maestro::train
