// What the sections need in memory, on paper: by the model's own code on the meta backend, for the worst
// micro-batch that the samples can give. One account for the check before training, the choice of windows
// and the simulator.
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

/// Samples that lie ready on a rank, at most; one micro-batch more is in use.
inline constexpr std::int64_t kBytesAhead = std::int64_t{64} << 20;

struct SectionMemory {
    model::Footprint footprint;  ///< of the worst micro-batch
    double samples = 0;          ///< bytes of its samples, and of those that lie ready
    std::int64_t max_rows = 0;   ///< that one rank of the section puts out for a micro-batch, at most
    int window = 0;              ///< micro-batches in flight; 0: not chosen yet
    int least = 1;               ///< for the samples of a micro-batch of a section that it feeds
    int most = 1;                ///< an open window is never wider: a replica's share of the batch
    int links = 0;               ///< to other ranks of its groups, by NCCL where GPUs compute it
    bool loss = false;           ///< its backward follows at once: one micro-batch in flight

    int slots() const { return loss ? 1 : window; }  ///< activations kept at a time
};

/// Bytes that libraries take of the memory of a rank's GPU; none on the CPU.
struct Libraries {
    double workspace = 0;  ///< the backend's own allocations, for each section
    double reserve = 0;    ///< estimated: code, handles
    double link = 0;       ///< estimated: buffers for each link of a section
    bool edges = false;    ///< may rows go from GPU to GPU? See channel::direct_bytes
    bool by_nccl = false;  ///< and by NCCL?
};

struct MemoryPlan {
    std::vector<SectionMemory> sections;         ///< by colour
    std::vector<channel::ChannelSpec> channels;  ///< by edge
    bool shares_scratch = true;  ///< the sections of a rank: where one's tasks never run beside another's
    Libraries libraries = {};
    void set_window(int section, int window, const graph::SectionGraph& graph);
};

/// Bytes of one rank over its sections and edges.
struct RankMemory {
    double weights = 0;      ///< and gradients
    double optimizer = 0;    ///< moments of its share of the weights
    double activations = 0;  ///< of the micro-batches in flight
    double scratch = 0;      ///< within a task, or as gradients are summed
    double channels = 0;     ///< rows and gradients under way
    double messages = 0;     ///< copies of rows and gradients that are sent between nodes
    double samples = 0;      ///< as read, in use and ready
    double libraries = 0;    ///< their workspace on a GPU
    double reserve = 0;      ///< for what they take there besides, estimated
    /// What is taken before the first step and kept.
    double buffers() const { return weights + optimizer + activations + scratch + channels; }
    /// Of a GPU's memory, where one computes.
    double on_device() const { return buffers() + libraries + reserve; }
    double total() const { return on_device() + messages + samples; }
    std::string describe() const;  ///< "812 MiB: 300 of weights and gradients, ..."
};

/// Windows as in the scenario, 0 where it leaves them open. `traits` are those of the device that is planned
/// for: this machine's where it trains. On one with memory of its own, sections of a rank run beside each
/// other. `train`: false where batches are evaluated.
MemoryPlan measure_memory(const Scenario& scenario, const SampleTable& table, Probes& probes,
                          backend::Traits traits, bool train = true);
/// Bytes of scratch that a rank of the section needs: within a task, or as gradients are summed.
double scratch_of(const MemoryPlan& plan, int section);
/// Of one rank of the world; open windows count nothing.
RankMemory memory_of(const MemoryPlan& plan, const graph::SectionGraph& graph, int rank);
/// For every section the window that a rank with `bytes` of memory allows: the deck's, or what the rank's
/// open windows share evenly, from `least` to `most`; `most` where this rank holds nothing of it.
std::vector<int> windows_within(const MemoryPlan& plan, const graph::SectionGraph& graph, int rank,
                                double bytes);
/// Chooses the open windows for ranks that all have `bytes`. No rank is asked; sizes are those of the deck.
void choose_windows(MemoryPlan& plan, const graph::SectionGraph& graph, double bytes);
/// The rank that needs most.
int fullest_rank(const MemoryPlan& plan, const graph::SectionGraph& graph);

/// One line of the log each.
std::string describe(const Libraries& libraries);
std::string describe(const SectionMemory& memory);

}  // namespace maestro::workload
