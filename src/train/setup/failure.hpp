// How an error ends a run whose GPUs wait for other ranks.
#pragma once

#include <functional>

#include "train/setup/run_context.hpp"

namespace maestro::train {

/// Runs `work`. An error that this rank has alone normally unwinds to main, which reports it and ends the
/// job. Where GPUs compute, unwinding may hang: the memory of a GPU is freed, and a communicator of NCCL
/// aborted, only after all work of the GPU, and that of another communicator may wait for a rank that has
/// failed. The job then ends here, before anything is destroyed. Errors about memory unwind, because what was
/// planned is added to them.
void end_before_unwinding(const RunContext& context, const std::function<void()>& work);

}  // namespace maestro::train
