// Saves and restores a job's state through checkpoints, agreeing over the world on every step that can fail.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "io/checkpoint.hpp"
#include "train/job.hpp"

namespace maestro::train {

/// Collective. Writes RUN/checkpoints/step-NNNNNN; the ranks of a section write its file, each its part, and
/// rank 0 the rest. Errors are thrown on all ranks and leave nothing under the final name. `damaged`: see
/// io::finish_checkpoint.
void save_checkpoint(Job& job, const std::filesystem::path& run, std::int64_t step,
                     std::span<const std::filesystem::path> damaged);

/// Collective. Weights of every section from a verified checkpoint, and of the moments each rank's share.
void load_checkpoint(Job& job, const std::string& checkpoint);

}  // namespace maestro::train
