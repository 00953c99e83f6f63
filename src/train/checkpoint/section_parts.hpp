// What of the sections' weights and moments a rank writes into a checkpoint and reads from one. Weights that
// are trained, and their moments, go with the optimizer's shares, frozen ones with the shards of one rank of
// each; nothing is gathered, and all ranks write at the same time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/pulse.hpp"
#include "comm/communicator.hpp"
#include "io/checkpoint.hpp"
#include "parallel/parameters.hpp"
#include "parallel/peers.hpp"
#include "train/step/optimizer.hpp"

namespace maestro::train {

/// A section on this rank. What it refers to belongs to the caller.
struct SectionPart {
    int section = 0;  ///< colour
    std::string name;
    const parallel::ParameterStore& store;
    Optimizer* optimizer = nullptr;  ///< null: frozen
    const parallel::Peers& peers;
    bool makes_file = false;            ///< one rank of each section
    bool writes_frozen = false;         ///< one rank of those that hold the same shards
    backend::Arena* scratch = nullptr;  ///< of its device, where that has memory of its own
};

/// Trained weights are numbers: each rank looks at those that it writes. Error(not_finite). Not collective.
void check_finite(const SectionPart& part, std::int64_t step);

/// Collective over `world`, whose ranks together write each of the `sections` whole. Returns the files that
/// this rank made, written and verified. Errors are thrown on all ranks.
std::vector<io::ManifestEntry> write_sections(const comm::Communicator& world,
                                              const std::filesystem::path& partial, std::int64_t step,
                                              int sections, std::span<const SectionPart> parts, Pulse& pulse);

/// The moments of this rank's share, from a verified checkpoint. Error(bad_data, io_error).
void load_moments(const std::string& checkpoint, const std::string& section,
                  const parallel::ParameterStore& store, Optimizer& optimizer, Pulse& pulse);

}  // namespace maestro::train
