// Finds the checkpoint to read, verified: the ranks read each byte of its files once, together.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/pulse.hpp"
#include "comm/communicator.hpp"

namespace maestro::train {

struct FoundCheckpoint {
    std::string path;  ///< the newest whole one; empty: there is none
    /// Newer ones that are damaged, newest first, and for each which file is damaged and how.
    std::vector<std::filesystem::path> damaged;
    std::vector<std::string> reports;
};

/// Collective. `path` is a checkpoint or a run directory. Throws on all ranks Error(io_error) where anything
/// cannot be read, which says nothing about its contents, and Error(bad_data) where one that is newer than
/// all whole ones is of a version that this build does not read.
FoundCheckpoint find_checkpoint(const comm::Communicator& world, const std::string& path, Pulse& pulse);

/// Collective. Like find_checkpoint(), for callers that cannot go on without one: Error(input_missing) where
/// the path does not exist, Error(bad_data) where no checkpoint there is whole. Damaged ones are logged.
std::string need_checkpoint(const comm::Communicator& world, const std::string& path, Pulse& pulse);

}  // namespace maestro::train
