// What tests may query from the simulated cuBLASLt.
#pragma once

#include <cstdint>

namespace hosted {

/// The library's heuristic returns three candidates. All but this one take 100 ms longer, for tests of
/// autotuning.
inline constexpr int kFastCandidate = 1;

/// The number of GEMMs so far that used the algorithm with this index among the candidates.
std::int64_t gemms_by_candidate(int candidate);
/// The number of calls of cublasLtMatmulAlgoCheck() so far.
std::int64_t algorithm_checks();

}  // namespace hosted
