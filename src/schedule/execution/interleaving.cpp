#include "schedule/execution/interleaving.hpp"

#include <algorithm>

namespace maestro::schedule {

namespace {

/// Returns the tasks of one phase in the order in which every rank runs them.
std::vector<ChunkTask> in_order(const std::vector<int>& rounds, int chunks, Phase phase) {
    std::vector<ChunkTask> tasks;
    int first = 0;  // micro-batch of the round
    for (const int size : rounds) {
        for (int k = 0; k < chunks; ++k)
            for (int i = 0; i < size; ++i)
                tasks.push_back({phase == Phase::forward ? k : chunks - 1 - k, first + i, phase});
        first += size;
    }
    return tasks;
}

/// Returns for each backward how many forwards the last rank has run before it.
std::vector<int> forwards_of_last_rank(const std::vector<int>& rounds, int chunks) {
    std::vector<int> before;
    int done = 0;  // forwards
    for (std::size_t k = 0; k < rounds.size(); ++k) {
        const int size = rounds[k], next = k + 1 < rounds.size() ? rounds[k + 1] : 0;
        done += k == 0 ? (chunks - 1) * size : 0;
        // The last chunk: every backward right after its forward.
        for (int i = 0; i < size; ++i) before.push_back(++done);
        // The backwards of the other chunks beside the forwards of the next round. Those without a partner
        // come first: they free memory, and the others end just when the last chunk of that round begins.
        const int alone = (chunks - 1) * (size - next);
        for (int i = 0; i < (chunks - 1) * size; ++i) before.push_back(i < alone ? done : ++done);
    }
    return before;
}

/// Returns the most tasks of the list that are in flight at the same time, of all chunks or (not -1) of one.
int most_in_flight(const std::vector<ChunkTask>& tasks, int chunk) {
    int in_flight = 0, most = 0;
    for (const ChunkTask& task : tasks) {
        if (chunk >= 0 && task.chunk != chunk) continue;
        in_flight += task.phase == Phase::forward ? 1 : -1;
        most = std::max(most, in_flight);
    }
    return most;
}

}  // namespace

std::vector<int> interleaved_rounds(int ranks, int micro_batches) {
    if (micro_batches == 0) return {};
    const int count = std::max(1, micro_batches / ranks);
    std::vector<int> rounds(count, micro_batches / count);
    for (int k = 0; k < micro_batches % count; ++k) ++rounds[k];
    return rounds;
}

std::vector<ChunkTask> interleaved_tasks(int ranks, int chunks, int rank, int micro_batches, bool backward) {
    const std::vector<int> rounds = interleaved_rounds(ranks, micro_batches);
    const std::vector<ChunkTask> forwards = in_order(rounds, chunks, Phase::forward);
    if (!backward) return forwards;
    const std::vector<ChunkTask> backwards = in_order(rounds, chunks, Phase::backward);
    const std::vector<int> of_last_rank = forwards_of_last_rank(rounds, chunks);
    // Think of all ranks running their forwards at the same time, and then their backwards. What one rank has
    // put out the next one uses a turn later. A rank `later` turns before the last one runs each forward that
    // many turns earlier and each backward that many turns later than the last one. With one chunk, where no
    // rank's output goes back to the first, neighbours alternate instead: one runs a forward while the other
    // runs a backward, so that it is the same with half as many micro-batches in flight.
    const int later = ranks - 1 - rank;
    std::vector<ChunkTask> tasks;
    std::size_t forward = 0;
    for (std::size_t k = 0; k < backwards.size(); ++k) {
        const std::size_t beside = chunks > 1 ? k + later : k;  // the backward of the last rank in this turn
        const std::size_t before = beside < of_last_rank.size()
                                       ? std::min<std::size_t>(of_last_rank[beside] + later, forwards.size())
                                       : forwards.size();
        for (; forward < before; ++forward) tasks.push_back(forwards[forward]);
        tasks.push_back(backwards[k]);
    }
    return tasks;
}

int interleaved_window(int ranks, int chunks, int stage, int most) {
    // A stage has micro-batches of one round or of two in flight, and more of them the larger the rounds are.
    // The largest single round has 2 ranks - 1 micro-batches, the largest two rounds have 3 ranks - 1
    // together. Of two numbers that follow each other one gives two equal rounds, with which some stages have
    // more in flight than with a slightly larger first round.
    const int two_rounds = std::min(most, 3 * ranks - 1);
    int window = 0;
    for (const int micro_batches : {std::min(most, 2 * ranks - 1), two_rounds, two_rounds - 1}) {
        const auto tasks = interleaved_tasks(ranks, chunks, stage % ranks, micro_batches, true);
        window = std::max(window, most_in_flight(tasks, stage / ranks));
    }
    return window;
}

int interleaved_in_flight(int ranks, int chunks, int rank, int micro_batches) {
    return most_in_flight(interleaved_tasks(ranks, chunks, rank, micro_batches, true), -1);
}

}  // namespace maestro::schedule
