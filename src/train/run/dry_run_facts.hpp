// What a dry run has found out, before it is told as text and as JSON. Private to the dry run.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "config/command_line.hpp"
#include "train/run/dry_run.hpp"

namespace maestro::train {

/// A part of a rank's memory: its words in the table, and its key.
struct MemoryPart {
    const char* words;
    const char* key;
    double (*bytes)(const workload::RankMemory& memory);
};

// In the order of the table. Together they are workload::RankMemory::needed().
inline constexpr MemoryPart kDeviceParts[] = {
    {"weights", "weights_bytes", [](const workload::RankMemory& m) { return m.weights - m.gradients; }},
    {"gradients", "gradients_bytes", [](const workload::RankMemory& m) { return m.gradients; }},
    {"optimizer's moments", "optimizer_bytes", [](const workload::RankMemory& m) { return m.optimizer; }},
    {"activations of the window", "activations_bytes",
     [](const workload::RankMemory& m) { return m.activations; }},
    {"temporary, within a task", "scratch_bytes",
     [](const workload::RankMemory& m) { return m.scratch - m.sums; }},
    {"buffers to sum gradients", "sums_bytes", [](const workload::RankMemory& m) { return m.sums; }},
    {"rows on edges", "edges_bytes", [](const workload::RankMemory& m) { return m.channels; }},
    {"NCCL and MPI on the GPU (estimate)", "transfers_bytes",
     [](const workload::RankMemory& m) { return m.transfers; }},
    {"workspace of GEMMs", "workspace_bytes", [](const workload::RankMemory& m) { return m.libraries; }},
    {"code of libraries (estimate)", "libraries_bytes",
     [](const workload::RankMemory& m) { return m.reserve - m.transfers; }},
};
// Of the host: on CPUs they are in the same memory as the others, and count to
// workload::RankMemory::needed().
inline constexpr MemoryPart kHostParts[] = {
    {"messages between nodes", "messages_bytes", [](const workload::RankMemory& m) { return m.messages; }},
    {"samples, read ahead", "samples_bytes", [](const workload::RankMemory& m) { return m.samples; }},
    {"exchange of experts' rows", "experts_bytes", [](const workload::RankMemory& m) { return m.experts; }},
    {"copy for checkpoints", "copy_bytes",
     [](const workload::RankMemory& m) { return m.snapshot + m.host_copy; }},
};

/// What is told of a section.
struct SectionFacts {
    int fullest = 0;  ///< its rank that needs most
    workload::RankMemory memory;
    std::set<int> nodes;                     ///< empty: not known
    std::vector<std::string> shares_with{};  ///< other sections on the fullest rank
    int window = 0;                          ///< of its first stage
    bool at_once = false;                    ///< backward follows forward: one micro-batch is kept
};

/// What is told of a run.
struct DryRunFacts {
    const RunContext& context;
    const workload::Scenario& scenario;
    const workload::MemoryPlan& plan;
    const workload::RankDevice& device;
    std::vector<workload::RankMemory> ranks{};
    std::vector<SectionFacts> sections{};
    DiskNeed disk{};
    std::optional<std::uint64_t> free_disk{};  ///< bytes where run.output is, on this machine
    std::string shortage{};
    double step_s = 0, tokens = 0;  ///< 0: not known
    std::vector<std::string> notes{};

    const graph::SectionGraph& graph() const { return scenario.graph; }
    std::int64_t steps() const { return context.deck.train.steps; }
};

/// About the devices, the memory of each section, the disk and the time of a step; without the texts that
/// nothing is known for.
std::vector<std::string> to_texts(const DryRunFacts& facts);
/// One line.
std::string to_json(const DryRunFacts& facts, const config::CommandLine& line);

}  // namespace maestro::train
