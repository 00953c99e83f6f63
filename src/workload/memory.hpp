// Predicts the memory that the stages of sections need, by running the models' code on the meta backend for
// the largest micro-batch that the samples can form. The check before training, the choice of windows and the
// simulator all use this account.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "channel/spec.hpp"
#include "model/module.hpp"
#include "workload/probes.hpp"
#include "workload/sample_table.hpp"
#include "workload/scenario.hpp"

namespace maestro::workload {

/// The most bytes of samples that are prefetched on a rank, besides the micro-batch in use.
inline constexpr std::int64_t kBytesAhead = std::int64_t{64} << 20;

/// Bytes and windows of a stage, on the rank of a replica that needs most.
struct StageMemory {
    model::Footprint footprint;  ///< of the largest micro-batch
    double samples = 0;          ///< bytes that it reads of the samples of the largest micro-batch
    double samples_of_step = 0;  ///< bytes that it reads in a step, at most
    std::int64_t max_rows = 0;   ///< the most output rows of a micro-batch on one rank
    int window = 0;              ///< micro-batches in flight; 0: not chosen yet
    int min_window = 1;          ///< holds the samples of a micro-batch of any section that it feeds
    int max_window = 1;          ///< holds a replica's share of the batch; a chosen window is never wider
    int links = 0;               ///< of a rank to other ranks of its groups; by NCCL on GPUs
    bool loss = false;           ///< backward follows forward at once: one micro-batch in flight
    double decoding = 0;         ///< bytes to decode answers after an evaluation, see plan_decoding()

    int slots() const { return loss ? 1 : window; }  ///< micro-batches whose activations are kept
};

/// Bytes that libraries use on the GPU of a rank; 0 on a CPU.
struct Libraries {
    double workspace = 0;  ///< that the backend allocates for each section of a rank
    double reserve = 0;    ///< estimated: code, handles
    double link = 0;       ///< estimated: buffers for each link of a stage
    bool edges = false;    ///< whether rows may go from GPU to GPU, see channel::direct_staging
};

struct MemoryPlan {
    std::vector<StageMemory> stages;             ///< by stage
    std::vector<channel::ChannelSpec> channels;  ///< by stage edge
    std::size_t moment_bytes = sizeof(float);    ///< of an element of the optimizer's moments
    /// The device uses the host's memory. Then the sections of a rank run one task at a time and share one
    /// scratch.
    bool shares_scratch = true;
    bool snapshots = false;  ///< checkpoints are written while training goes on, from a copy
    Libraries libraries = {};
    void set_window(int stage, int window, const graph::SectionGraph& graph);
};

/// Bytes of one rank over its stages and edges.
struct RankMemory {
    bool on_gpu = false;     ///< then samples, messages and the copy are in the memory of its host
    double weights = 0;      ///< and gradients, where a section is trained
    double gradients = 0;    ///< the part of these for gradients
    double optimizer = 0;    ///< moments of its share of the weights
    double activations = 0;  ///< of the micro-batches in flight
    double scratch = 0;      ///< within a task, and as gradients are summed
    double sums = 0;         ///< the part of it for the sums of gradients
    double channels = 0;     ///< rows and gradients in transit
    double decoding = 0;     ///< keys and values of answers that are decoded
    double messages = 0;     ///< copies of rows and gradients that are sent between nodes
    double samples = 0;      ///< in use and prefetched
    double experts = 0;      ///< on the host: where rows go to experts
    double snapshot = 0;     ///< copy for checkpoints, where the device uses the host's memory
    double host_copy = 0;    ///< the same in the memory of a GPU's host
    double libraries = 0;    ///< workspace on a GPU
    double reserve = 0;      ///< estimate of what libraries use on a GPU besides
    double transfers = 0;    ///< the part of it for the buffers of NCCL and CUDA-aware MPI
    /// What is allocated before the first step and kept.
    double buffers() const { return weights + optimizer + activations + scratch + channels + decoding; }
    /// What is in the memory of the GPU, if there is one.
    double on_device() const { return buffers() + libraries + reserve; }
    double total() const { return on_device() + messages + samples + experts + snapshot; }
    /// What has to fit into the memory of the device, and into that of the host besides.
    double needed() const { return on_gpu ? on_device() : total(); }
    double on_host() const { return on_gpu ? messages + samples + experts + host_copy : 0; }
    std::string describe() const;  ///< needed(): "812 MiB: 300 for weights and gradients, ..."
};

/// Windows as in the scenario, 0 where it leaves them open. `traits` are those of the device that is planned
/// for: this machine's, when it trains. On a device with separate memory the sections of a rank run
/// concurrently. `train`: false if batches are evaluated.
MemoryPlan measure_memory(const Scenario& scenario, const SampleTable& table, Probes& probes,
                          backend::Traits traits, bool train = true);
/// Returns the stage's part of it, which the sections around it have no influence on: without min_window and
/// what follows from it.
StageMemory measure_stage(const Scenario& scenario, int stage, const SampleTable& table, Probes& probes,
                          backend::Traits traits, bool train);
/// Returns measure_memory() of stages that were measured before, in the scenario's order.
MemoryPlan join_stages(const Scenario& scenario, const SampleTable& table, backend::Traits traits,
                       std::vector<StageMemory> stages);
/// Returns the number of NCCL connections of a rank of a stage to the other ranks of its process groups.
int links_of(const parallel::MeshShape& shape);
/// Returns the bytes of scratch that a task of the stage needs.
double scratch_of(const MemoryPlan& plan, int stage);
/// Returns the bytes of host memory into which a rank copies what a checkpoint holds of it: masters and
/// moments of its shard of the trained weights, and from a device with separate memory its shard of the
/// frozen ones. 0 where the plan has no snapshots.
double snapshot_of(const MemoryPlan& plan, const graph::SectionGraph& graph, int rank);
/// Returns what one rank of the world needs. A window that is not chosen yet counts nothing.
RankMemory memory_of(const MemoryPlan& plan, const graph::SectionGraph& graph, int rank);
/// Returns, for every stage, the window that a rank with `bytes` of memory allows. Windows that are chosen
/// stay. The others share what is left of the rank's memory evenly, within min_window and max_window; a stage
/// of which this rank holds nothing gets max_window.
std::vector<int> windows_within(const MemoryPlan& plan, const graph::SectionGraph& graph, int rank,
                                double bytes);
/// Chooses the windows that are still open, for ranks that have `bytes` of memory each. Pure: no
/// communication.
void choose_windows(MemoryPlan& plan, const graph::SectionGraph& graph, double bytes);
/// Returns the rank that needs the most memory.
int max_memory_rank(const MemoryPlan& plan, const graph::SectionGraph& graph);

/// A line for the log.
std::string describe(const Libraries& libraries);
std::string describe(const StageMemory& memory);

}  // namespace maestro::workload
