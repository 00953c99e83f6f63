// Saves and restores a job's state through checkpoints, agreeing over the world on every step that can fail.
#pragma once

#include <filesystem>

#include "io/checkpoint.hpp"
#include "train/job.hpp"

namespace maestro::train {

/// Collective. Writes RUN/checkpoints/step-NNNNNN; section leaders write their files, rank 0 the rest. Errors
/// are thrown on all ranks and leave nothing under the final name.
void save_checkpoint(Job& job, const std::filesystem::path& run, std::int64_t step, std::int64_t keep);

/// Collective. Weights and moments of every section from a whole checkpoint.
void load_checkpoint(Job& job, const std::filesystem::path& checkpoint);

}  // namespace maestro::train
