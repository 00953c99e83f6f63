// The device of a rank that a run is planned for: of this machine, of a cluster file, or one of which only
// the memory is known. What `train` refuses on a machine, simulation, emulation and dry run predict by the
// same account.
#pragma once

#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "config/cluster.hpp"
#include "config/deck.hpp"
#include "transport/choice.hpp"
#include "workload/memory.hpp"
#include "workload/memory_pools.hpp"
#include "workload/probes.hpp"
#include "workload/sample_table.hpp"
#include "workload/scenario.hpp"

namespace maestro::workload {

struct RankDevice {
    std::string name;             ///< "H100 SXM"
    bool gpu = false;             ///< one for each rank, with memory apart from the host's
    backend::Traits traits = {};  ///< on which the memory of operations depends
    Libraries libraries = {};
    double memory = 0;          ///< bytes that are free for the rank, once its process has a CUDA context
    double context_memory = 0;  ///< bytes that this context takes beside them
    double host_memory = 0;     ///< bytes that a rank with a GPU has of its host's; 0: not known
    double window_share = config::Device().window_share;
    int ranks_per_node = 0;  ///< 0: not known
    /// The bytes that a rank may need in all with the windows that the deck leaves open.
    double window_bytes() const { return window_share * memory; }
};

/// A rank's device in a cluster of such devices. `run` says what a file may leave open: a device whose kind
/// is not known is a GPU where run.device is "cuda".
RankDevice rank_device_of(const config::Device& device, const config::Run& run, std::string name,
                          int ranks_per_node);
RankDevice rank_device_of(const config::Cluster& cluster, const config::Run& run);

/// The transport that the deck asks for (run.transport).
transport::TransportRequest transport_request(const config::Run& run);

struct PlanOptions {
    bool train = true;       ///< false: batches are evaluated
    bool snapshots = false;  ///< see MemoryPlan
    transport::TransportRequest transport = transport::TransportRequest::automatic;
    bool least_windows = false;  ///< open windows are as small as they can be, whatever memory there is
};
/// How a training run of the deck is planned.
PlanOptions plan_options_of(const config::Deck& deck);

/// Returns what the ranks need on such devices, with all windows chosen. Throws Error(bad_deck) where
/// run.transport asks for what the nodes do not have.
MemoryPlan plan_memory(const Scenario& scenario, const SampleTable& table, Probes& probes,
                       const RankDevice& device, const PlanOptions& options);
/// Returns the same from what measure_memory() has found.
MemoryPlan plan_memory(MemoryPlan measured, const graph::SectionGraph& graph, const RankDevice& device,
                       const PlanOptions& options);

/// Returns the memories that the ranks need something of: of their GPUs and, where it is known, of the hosts
/// of these, or of the nodes whose ranks are CPUs.
std::vector<MemoryPool> memory_pools_of(const MemoryPlan& plan, const graph::SectionGraph& graph,
                                        const RankDevice& device);
/// Returns "" where all ranks fit, otherwise shortage() of the pools.
std::string shortage(const MemoryPlan& plan, const graph::SectionGraph& graph, const RankDevice& device);

/// Returns the message about a shortage: `lack`, what to do, and what a rank of each section needs.
std::string refusal(const std::string& lack, const std::string& advice, const MemoryPlan& plan,
                    const graph::SectionGraph& graph);

}  // namespace maestro::workload
