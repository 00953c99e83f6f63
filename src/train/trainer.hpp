// maestro train: the loop over the steps, from a deck to checkpoints and metrics.
#pragma once

#include <functional>

#include "base/error.hpp"
#include "config/command_line.hpp"
#include "train/job.hpp"

namespace maestro::train {

/// What main needs to tell how a run ended.
struct Progress {
    std::filesystem::path directory;  ///< empty until the run owns it
    std::int64_t step = 0;            ///< steps done
    std::string reason = "done";
};

/// Collective. Returns done or stopped_early; everything else is thrown.
ExitCode run_training(Launch& launch, const config::CommandLine& line, Progress& progress);

}  // namespace maestro::train
