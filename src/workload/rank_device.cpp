#include "workload/rank_device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "backend/gpus.hpp"
#include "channel/open.hpp"
#include "graph/grid.hpp"

namespace maestro::workload {

namespace {

/// Sets which edges send messages, as channel::mark_messages() does where the ranks are.
void mark_messages(MemoryPlan& plan, const graph::SectionGraph& graph, const RankDevice& device,
                   transport::TransportRequest request) {
    std::vector<std::string> hosts;
    for (int rank = 0; rank < graph.world; ++rank)
        hosts.push_back(fmt::format("node {}", device.ranks_per_node > 0 ? rank / device.ranks_per_node : 0));
    const std::vector<std::string> gpus(hosts.size());
    for (channel::ChannelSpec& spec : plan.channels)
        spec.by_messages = channel::choose(spec, hosts, gpus, request).method == transport::Method::messages;
}

}  // namespace

RankDevice rank_device_of(const config::Device& device, const config::Run& run, std::string name,
                          int ranks_per_node) {
    RankDevice made{.name = std::move(name),
                    .gpu = device.kind == "gpu" || (device.kind.empty() && run.device == "cuda"),
                    .traits = {static_cast<int>(device.threads)},
                    .memory = device.memory,
                    .window_share = device.window_share,
                    .ranks_per_node = ranks_per_node};
    if (!made.gpu) return made;
    const backend::AttentionSupport attention = backend::attention_support_of(
        static_cast<int>(device.architecture), static_cast<std::size_t>(device.cudnn));
    const backend::LibraryMemory libraries = backend::library_memory(
        {.tf32 = false, .autotune = run.gemm_autotune == "benchmark"}, attention.architecture != 0);
    made.traits = {1, false, attention};
    made.context_memory = std::min(device.context_memory, device.memory);
    made.memory -= made.context_memory;
    made.host_memory = device.host_memory;
    made.libraries = {
        .workspace = static_cast<double>(libraries.workspace),
        .reserve = device.library_memory.value_or(static_cast<double>(libraries.reserve)),
        .link = device.nccl_connection_memory.value_or(static_cast<double>(transport::kNcclConnectionBytes)),
        .edges = run.transport == "auto" && device.mpi_reaches_gpus};
    return made;
}

RankDevice rank_device_of(const config::Cluster& cluster, const config::Run& run) {
    return rank_device_of(cluster.device, run, cluster.name, static_cast<int>(cluster.ranks_per_node));
}

transport::TransportRequest transport_request(const config::Run& run) {
    using transport::TransportRequest;
    if (run.transport == "window") return TransportRequest::shared_memory;
    return run.transport == "messages" ? TransportRequest::messages : TransportRequest::automatic;
}

PlanOptions plan_options_of(const config::Deck& deck) {
    return {.snapshots = deck.save_interval() > 0, .transport = transport_request(deck.run)};
}

MemoryPlan plan_memory(const Scenario& scenario, const SampleTable& table, Probes& probes,
                       const RankDevice& device, const PlanOptions& options) {
    return plan_memory(measure_memory(scenario, table, probes, device.traits, options.train), scenario.graph,
                       device, options);
}

MemoryPlan plan_memory(MemoryPlan plan, const graph::SectionGraph& graph, const RankDevice& device,
                       const PlanOptions& options) {
    plan.snapshots = options.snapshots;
    plan.libraries = device.libraries;
    // The memory of a GPU holds no messages.
    if (!device.gpu) mark_messages(plan, graph, device, options.transport);
    choose_windows(plan, graph, options.least_windows ? 0 : device.window_bytes());
    return plan;
}

namespace {

/// What the ranks need. Those that hold the same stages need the same, which is computed once.
class MemoryOfRanks {
public:
    MemoryOfRanks(const MemoryPlan& plan, const graph::SectionGraph& graph) : plan_(plan), graph_(graph) {}
    const RankMemory& operator()(int rank) {
        held_.clear();
        for (int stage = 0; stage < static_cast<int>(graph_.stages.size()); ++stage)
            if (graph::holds(graph_, stage, rank)) held_.push_back(stage);
        const auto known = memory_.find(held_);
        if (known != memory_.end()) return known->second;
        return memory_.emplace(held_, memory_of(plan_, graph_, rank)).first->second;
    }

private:
    const MemoryPlan& plan_;
    const graph::SectionGraph& graph_;
    std::vector<int> held_;
    std::map<std::vector<int>, RankMemory> memory_;
};

/// Whether every device and every host has the memory that its ranks need.
bool all_fit(const MemoryPlan& plan, const graph::SectionGraph& graph, const RankDevice& device) {
    MemoryOfRanks memory_of_rank(plan, graph);
    const int here = std::max(device.ranks_per_node, 1);
    double devices = 0, hosts = 0;  // of the ranks of the present node
    for (int rank = 0; rank < graph.world; ++rank) {
        if (rank % here == 0) devices = hosts = 0;
        const RankMemory& memory = memory_of_rank(rank);
        devices = memory.needed() + (device.gpu ? 0 : devices);
        hosts += memory.on_host();
        if (devices > (device.gpu ? 1 : here) * device.memory) return false;
        if (device.gpu && device.host_memory > 0 && hosts > here * device.host_memory) return false;
    }
    return true;
}

}  // namespace

std::vector<MemoryPool> memory_pools_of(const MemoryPlan& plan, const graph::SectionGraph& graph,
                                        const RankDevice& device) {
    std::vector<MemoryPool> devices, hosts;
    const int here = device.ranks_per_node;
    const auto add = [](std::vector<MemoryPool>& pools, std::string name, double free, double needed) {
        if (pools.empty() || pools.back().name != name)
            pools.push_back({.memory = name, .name = std::move(name), .free = free});
        ++pools.back().ranks;
        pools.back().needed += needed;
    };
    MemoryOfRanks memory_of_rank(plan, graph);
    for (int rank = 0; rank < graph.world; ++rank) {
        const RankMemory& memory = memory_of_rank(rank);
        const std::string node = here > 0 ? fmt::format("node {}", rank / here) : "";
        if (!device.gpu)
            add(devices, here > 0 ? node : fmt::format("the machine of rank {}", rank),
                std::max(here, 1) * device.memory, memory.needed());
        else
            add(devices,
                here > 0 ? fmt::format("GPU {} of {}", rank % here, node)
                         : fmt::format("the GPU of rank {}", rank),
                device.memory, memory.needed());
        if (device.gpu && device.host_memory > 0)
            add(hosts, here > 0 ? node : fmt::format("the host of rank {}", rank),
                std::max(here, 1) * device.host_memory, memory.on_host());
    }
    devices.insert(devices.end(), hosts.begin(), hosts.end());
    return devices;
}

std::string shortage(const MemoryPlan& plan, const graph::SectionGraph& graph, const RankDevice& device) {
    if (all_fit(plan, graph, device)) return {};
    return shortage(memory_pools_of(plan, graph, device));
}

std::string refusal(const std::string& lack, const std::string& advice, const MemoryPlan& plan,
                    const graph::SectionGraph& graph) {
    std::string list;
    for (int stage = 0; stage < static_cast<int>(graph.stages.size()); ++stage)
        list += fmt::format("\n  section {}: {}", graph.stage_name(stage),
                            memory_of(plan, graph, graph::first_rank_of(graph, stage)).describe());
    return fmt::format("{}; {}. A rank of each section needs:{}", lack, advice, list);
}

}  // namespace maestro::workload
