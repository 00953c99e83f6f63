// What the sections need in memory, found before any of it is taken: by the model's own code on the meta
// backend, for the worst micro-batch that the samples can give.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/launch.hpp"
#include "workload/sample_table.hpp"

namespace maestro::train {

/// Samples that lie ready on a rank, at most; one micro-batch more is in use.
inline constexpr std::int64_t kBytesAhead = std::int64_t{64} << 20;

struct SectionMemory {
    model::Footprint footprint;  ///< of the worst micro-batch
    double samples = 0;          ///< bytes of its samples
    std::int64_t max_rows = 0;   ///< that the section puts out for it
    int window = 1;              ///< micro-batches in flight; resolved where the deck says 0
    int slots = 1;               ///< activations kept at a time: the window, 1 for a section with the loss
};

/// Of every section, the same on every rank. Collective. Windows that the deck leaves open (0) are given what
/// is free on the fullest rank. Throws Error(device_memory, all_ranks), naming host and sections, where a
/// node's ranks need more than it has.
std::vector<SectionMemory> plan_memory(const Launch& launch, const workload::SampleTable& table,
                                       std::int32_t marker);

/// One line of the log.
std::string describe(const SectionMemory& memory);

}  // namespace maestro::train
