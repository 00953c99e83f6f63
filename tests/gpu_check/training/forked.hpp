// Ranks of a check as forked processes. A process that has used CUDA must not be forked.
#pragma once

#include <functional>
#include <string>

namespace maestro::gpu_check {

/// Runs body(rank) in `count` child processes, which end with its result as exit code, and waits for them.
/// When the time is over, or a while after one of them has failed, those that still run are killed. Returns
/// what went wrong, which names ranks; otherwise "".
std::string run_forked(int count, double seconds, const std::function<int(int rank)>& body);
/// Runs body() in a child process and returns its exit code; -1 if it does not end in time.
int exit_code_of(double seconds, const std::function<int()>& body);

}  // namespace maestro::gpu_check
