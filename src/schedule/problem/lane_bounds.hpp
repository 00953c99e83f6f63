// Lower bounds of what several stages share, a lane, and of what a window allows.
#pragma once

#include "schedule/problem/sample_paths.hpp"

namespace maestro::schedule {

/// Returns a lower bound, summed over `machines`, of the time that they are idle at one end of the step if
/// each has a task and `ends` are the heads or tails of all tasks: the sum of the smallest. With fewer tasks
/// than machines, of these.
double idle_at_end(std::vector<double> ends, int machines);

/// Returns the largest bound of lanes that stages share, seconds: all work of the stages that run there and
/// nowhere else over the number of lanes, plus the time that these must wait before their first and after
/// their last task.
double lane_bound(const SamplePaths& paths, const std::vector<double>& loads);

/// Returns the largest bound of a stage's window, seconds. By Little's law ("A proof for the queuing formula
/// L = lambda W", 1961) the times for which micro-batches are in flight add up to at most the window times
/// the time between the first and the last of them.
double window_bound(const SamplePaths& paths);

}  // namespace maestro::schedule
