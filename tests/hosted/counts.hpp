// Counts what a program asks of the simulated runtime and of the simulated libraries, where
// MAESTRO_HOSTED_COUNTS names a folder. Each process writes the file RANK.tsv there when it ends: for each
// phase and kind of call a line PHASE, WHAT, number of calls and bytes, separated by tabs. The phase is that
// of the calling thread by its NVTX ranges: "forward micro-batch N", "backward micro-batch N", "reduce" or
// "update", otherwise "elsewhere".
#pragma once

#include <cstddef>

namespace hosted {

/// `what` is a string literal.
void count(const char* what, std::size_t bytes = 0);

}  // namespace hosted
