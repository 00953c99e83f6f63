// A rank's part of a checkpoint: the weights and moments of its shards (parallel/parameter_group.hpp).
// Nothing is gathered. All ranks write at the same time, each its part of the section files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/pulse.hpp"
#include "comm/communicator.hpp"
#include "io/checkpoint.hpp"
#include "parallel/parameter_store.hpp"
#include "train/step/optimizer.hpp"

namespace maestro::train {

/// What this rank holds of a stage of a section. The caller owns what it refers to.
struct StagePart {
    int section = 0;  ///< colour
    std::string name;
    const parallel::ParameterStore& store;
    Optimizer* optimizer = nullptr;     ///< null: frozen
    bool first = false;                 ///< true on one rank of each stage, which lists its parameters
    backend::Arena* scratch = nullptr;  ///< of its device, where the host cannot read the weights
    int stage = 0;                      ///< within the section

    bool makes_file() const { return first && stage == 0; }  ///< true on one rank of each section
};

/// Error(not_finite) where a trained weight of this rank's shards is NaN or Inf. Not collective.
void check_finite(const StagePart& part, std::int64_t step);

/// Collective over `world`, whose ranks together write all of the `sections`, each with the parameters of all
/// of its stages, in their order. A parameter that two stages hold copies of is written once. Returns the
/// files that this rank has created, written and verified. Errors are thrown on all ranks.
std::vector<io::ManifestEntry> write_sections(const comm::Communicator& world,
                                              const std::filesystem::path& partial, std::int64_t step,
                                              int sections, std::span<const StagePart> parts, Pulse& pulse);

/// Loads the moments of this rank's shards from a verified checkpoint. Error(bad_data, io_error).
void load_moments(const std::string& checkpoint, const std::string& section,
                  const parallel::ParameterStore& store, Optimizer& optimizer, Pulse& pulse);

}  // namespace maestro::train
