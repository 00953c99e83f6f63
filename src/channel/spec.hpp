// What an edge is at run time, before it has any memory: who sends, who receives, and how much of it. Plain
// values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.hpp"

namespace maestro::channel {

struct ChannelSpec {
    std::string name;              ///< "vision-language"
    std::vector<int> producers;    ///< rank of each replica of the upstream section
    std::vector<int> consumers;    ///< of the downstream section; fanout = consumers / producers
    std::int64_t width = 0;        ///< elements of a row
    DType dtype = DType::f32;      ///< of rows and gradients
    int window = 1;                ///< the producer's micro-batches in flight, >= 1
    std::int64_t max_rows = 0;     ///< rows of a producer's micro-batch at most (slot size)
    std::int64_t max_samples = 0;  ///< routes of a step at most, over all replicas
    bool carries_gradient = true;
    bool colocated = false;  ///< producers == consumers: a pointer is passed, no MPI
    /// Of an emulated link between ranks of one machine: rows, and gradients, are seen so long after they
    /// were put, and so much longer for each row.
    double latency_s = 0, row_s = 0;
};

inline bool is_delayed(const ChannelSpec& spec) {
    return !spec.colocated && (spec.latency_s > 0 || spec.row_s > 0);
}

/// Replica that `rank` holds on one side of an edge, -1 if none.
inline int replica_on(const std::vector<int>& side, int rank) {
    const auto at = std::find(side.begin(), side.end(), rank);
    return at == side.end() ? -1 : static_cast<int>(at - side.begin());
}

inline std::size_t bytes_of_rows(const ChannelSpec& spec, std::int64_t rows) {
    return static_cast<std::size_t>(rows * spec.width) * size_of(spec.dtype);
}

/// Bytes of one slot: the rows of a micro-batch.
inline std::size_t slot_bytes(const ChannelSpec& spec) {
    return bytes_of_rows(spec, spec.max_rows);
}

/// On an emulated link each word has a time beside it: where these begin, behind the words of a step, which
/// announce its samples and answer them.
inline std::size_t due_offset(const ChannelSpec& spec) {
    return 2 * sizeof(std::uint64_t) * static_cast<std::size_t>(spec.max_samples);
}

/// Bytes of the words, and of their times.
inline std::size_t words_bytes(const ChannelSpec& spec) {
    constexpr std::size_t kAlign = 64;
    const std::size_t bytes = (is_delayed(spec) ? 2 : 1) * due_offset(spec);
    return (bytes + kAlign - 1) / kAlign * kAlign;
}

/// Are there slots on this side: for rows that come in, or for their gradients?
inline bool has_slots(const ChannelSpec& spec, bool consumer) {
    return (consumer && !spec.colocated) || spec.carries_gradient;
}

/// Bytes that `rank` keeps for the edge: words, and a slot for each micro-batch in flight.
inline std::size_t rank_bytes(const ChannelSpec& spec, int rank) {
    const bool consumer = replica_on(spec.consumers, rank) >= 0;
    if (!consumer && replica_on(spec.producers, rank) < 0) return 0;
    const std::size_t slots = has_slots(spec, consumer) ? static_cast<std::size_t>(spec.window) : 0;
    return words_bytes(spec) + slots * slot_bytes(spec);
}

/// Ranks that take part: producers, then consumers; of a colocated edge each once.
inline std::vector<int> ranks_of(const ChannelSpec& spec) {
    std::vector<int> ranks = spec.producers;
    if (!spec.colocated) ranks.insert(ranks.end(), spec.consumers.begin(), spec.consumers.end());
    return ranks;
}

}  // namespace maestro::channel
