// The order of tasks in a pipeline whose ranks hold several chunks of the layers each: the interleaved
// schedule 1F1B of Narayanan et al., "Efficient large-scale language model training on GPU clusters using
// Megatron-LM" (SC 2021), for any number of micro-batches.
//
// Of `ranks` pipeline ranks, rank r holds stages r, r + ranks, r + 2 ranks, ...: its chunks 0, 1, 2, ... With
// m micro-batches on p ranks of v chunks, and tasks of a rank's v chunks that take c seconds for forward and
// backward together, a step takes m c + (p - 1) c / v where m >= p, and p c + (m - 1) c / v where m < p. So
// does a section without a backward, c being the seconds of its forwards.
#pragma once

#include <limits>
#include <vector>

#include "schedule/problem/step_plan.hpp"

namespace maestro::schedule {

/// A task of a pipeline rank.
struct ChunkTask {
    int chunk = 0;
    int micro_batch = 0;
    Phase phase = Phase::forward;
    bool operator==(const ChunkTask&) const = default;
};

/// Returns how many micro-batches run through all chunks together, round after round: as even as can be, the
/// larger rounds first, and at least `ranks` each, because only then the first rank need not wait for the
/// last one to begin its next chunk. With fewer micro-batches than ranks there is one round of all.
std::vector<int> interleaved_rounds(int ranks, int micro_batches);

/// Returns the tasks of pipeline rank `rank` in their order. A rank runs the first chunk of a round, then the
/// second, and so on; backwards from the last chunk to the first. In a round of n micro-batches it runs
/// 2 (ranks - rank - 1) + (chunks - 1) n forwards and then a forward and a backward in turn. Where a smaller
/// round follows, the backwards of as many forwards as this has fewer come first, so that in the last stage
/// every backward follows its forward. With one chunk it is 1F1B with ranks - rank - 1 forwards before the
/// first pair ("PipeDream", Narayanan et al. 2019). Without `backward` only forwards are listed.
std::vector<ChunkTask> interleaved_tasks(int ranks, int chunks, int rank, int micro_batches, bool backward);

/// Returns how many micro-batches stage `stage` (0 .. ranks * chunks - 1) has in flight at most, from the
/// start of a forward to the end of its backward, in a step of any number of micro-batches up to `most`. It
/// is the smallest window in which the tasks of interleaved_tasks() run without waiting for one another
/// longer than they must. With one chunk: min(most, ranks - stage); in the last stage 1.
int interleaved_window(int ranks, int chunks, int stage, int most = std::numeric_limits<int>::max());

/// Returns how many the chunks of a pipeline rank have in flight at the same time, all together. That may be
/// fewer than the sum of their windows, because they have their most at different times. In a step of
/// `micro_batches` whose first round is n: min(chunks micro_batches, 2 (ranks - rank - 1) + (chunks - 1) n +
/// 1).
int interleaved_in_flight(int ranks, int chunks, int rank, int micro_batches);

}  // namespace maestro::schedule
