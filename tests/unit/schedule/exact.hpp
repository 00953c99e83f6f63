// The shortest makespan of a small problem by branch and bound over active schedules (Giffler, Thompson,
// 1960): the oracle of the scheduler's tests. Micro-batches of one sample, no colocated sections, no delays;
// a stage with a loss runs its backward right after its forward. The stages of a pipeline may run the
// micro-batches in any order, each its own.
#pragma once

#include <cstdint>

#include "schedule/problem/problem.hpp"

namespace maestro::schedule_test {

struct Exact {
    double makespan_s = 0;
    bool proven = false;  ///< false: the search was cut off, makespan_s is only the best found
};

/// `start_s`: a makespan known to be possible. `most_nodes`: of the search tree.
Exact shortest(const schedule::Problem& problem, double start_s, std::int64_t most_nodes = 20'000'000);

}  // namespace maestro::schedule_test
