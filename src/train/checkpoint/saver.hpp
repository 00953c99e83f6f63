// Saves the state of a run to checkpoints and restores it. After every step that can fail, all ranks agree
// on whether it has failed anywhere.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "base/pulse.hpp"
#include "comm/communicator.hpp"
#include "config/deck.hpp"
#include "graph/section_graph.hpp"
#include "io/checkpoint.hpp"
#include "train/step/local_stage.hpp"

namespace maestro::train {

/// What is saved and restored on this rank. The caller owns what it refers to.
struct RunState {
    const comm::Communicator& world;
    const config::Deck& deck;
    const graph::SectionGraph& graph;
    std::span<const std::unique_ptr<LocalStage>> stages;
    std::uint64_t samples = 0;  ///< data::SampleFile::identity() of the training samples
    Pulse& pulse;
};

/// Collective. Writes RUN/checkpoints/step-NNNNNN; the ranks of a section write its file, each its part, and
/// rank 0 the rest. Errors are thrown on all ranks and leave nothing under the final name. `damaged`: see
/// io::finish_checkpoint.
void save_checkpoint(const RunState& state, const std::filesystem::path& run, std::int64_t step,
                     std::span<const std::filesystem::path> damaged);

/// Collective. Loads the weights and moments of each rank's shards from a verified checkpoint. Without an
/// optimizer, as in an evaluation, the moments are skipped.
void load_checkpoint(const RunState& state, const std::string& checkpoint);

}  // namespace maestro::train
