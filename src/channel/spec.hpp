// What an edge is at run time, before it has any memory: who sends, who receives, and how much of it. Plain
// values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.hpp"

namespace maestro::channel {

/// One end of an edge: the ranks of each replica, the leader first. All replicas have equally many.
using Side = std::vector<std::vector<int>>;

struct ChannelSpec {
    std::string name;               ///< "vision-language"
    Side producers;                 ///< the upstream section
    Side consumers;                 ///< the downstream section; fanout = consumers / producers
    std::int64_t width = 0;         ///< elements of a row
    DType dtype = DType::f32;       ///< of rows and gradients
    int window = 1;                 ///< the producer's micro-batches in flight, >= 1
    std::int64_t max_sent = 0;      ///< rows that one rank puts out for a micro-batch, at most
    std::int64_t max_received = 0;  ///< rows that one rank gets of a producer's micro-batch, at most
    std::int64_t max_samples = 0;   ///< routes of a step at most, over all replicas
    bool carries_gradient = true;
    bool pointer = false;  ///< both ends of every replica are one and the same rank: a pointer is passed
    /// Of an emulated link between ranks of one machine: rows, and gradients, are seen so long after they
    /// were put, and so much longer for each row.
    double latency_s = 0, row_s = 0;
    bool by_messages = false;  ///< rows travel in messages, whose memory counts: see mark_messages()
};

inline bool is_delayed(const ChannelSpec& spec) {
    return !spec.pointer && (spec.latency_s > 0 || spec.row_s > 0);
}

/// Where a rank is on one side of an edge.
struct Seat {
    int replica = 0, rank = 0;  ///< rank within the replica
};

inline std::optional<Seat> seat_on(const Side& side, int rank) {
    for (std::size_t r = 0; r < side.size(); ++r)
        if (const auto at = std::find(side[r].begin(), side[r].end(), rank); at != side[r].end())
            return Seat{static_cast<int>(r), static_cast<int>(at - side[r].begin())};
    return std::nullopt;
}

inline std::size_t bytes_of_rows(const ChannelSpec& spec, std::int64_t rows) {
    return static_cast<std::size_t>(rows * spec.width) * size_of(spec.dtype);
}

/// Words of a step: of each sample one for every rank that may announce it, and one for every rank that may
/// answer.
inline std::size_t word_count(const ChannelSpec& spec) {
    return static_cast<std::size_t>(spec.max_samples) *
           (spec.producers.front().size() + spec.consumers.front().size());
}

/// On an emulated link each word has a time beside it: where these begin, behind the words.
inline std::size_t due_offset(const ChannelSpec& spec) {
    return sizeof(std::uint64_t) * word_count(spec);
}

/// Bytes of the words, and of their times.
inline std::size_t words_bytes(const ChannelSpec& spec) {
    constexpr std::size_t kAlign = 64;
    const std::size_t bytes = (is_delayed(spec) ? 2 : 1) * due_offset(spec);
    return (bytes + kAlign - 1) / kAlign * kAlign;
}

/// Bytes that one micro-batch in flight takes on `rank`: for rows that come in, and for gradients that come
/// back.
struct SlotBytes {
    std::size_t rows = 0, gradient = 0;
    std::size_t both() const { return rows + gradient; }
};

inline SlotBytes slot_bytes(const ChannelSpec& spec, int rank) {
    SlotBytes bytes;
    if (!spec.pointer && seat_on(spec.consumers, rank)) bytes.rows = bytes_of_rows(spec, spec.max_received);
    if (spec.carries_gradient && seat_on(spec.producers, rank))
        bytes.gradient = bytes_of_rows(spec, spec.max_sent);
    return bytes;
}

/// Where on `rank` the gradients' slots begin: behind the words and the slots of rows.
inline std::size_t gradients_offset(const ChannelSpec& spec, int rank) {
    return words_bytes(spec) + static_cast<std::size_t>(spec.window) * slot_bytes(spec, rank).rows;
}

/// Bytes that `rank` keeps for the edge: words, and slots for each micro-batch in flight.
inline std::size_t rank_bytes(const ChannelSpec& spec, int rank) {
    if (!seat_on(spec.consumers, rank) && !seat_on(spec.producers, rank)) return 0;
    return words_bytes(spec) + static_cast<std::size_t>(spec.window) * slot_bytes(spec, rank).both();
}

/// Bytes of messages that one micro-batch in flight takes on `rank`, if the edge's rows travel in messages.
/// One buffer per slot is enough: a slot's rows have been delivered before their gradient is sent back.
inline std::size_t slot_message_bytes(const ChannelSpec& spec, int rank) {
    if (!spec.by_messages) return 0;
    std::int64_t rows = 0;
    if (seat_on(spec.producers, rank)) rows += spec.max_sent;
    if (seat_on(spec.consumers, rank)) rows += spec.max_received;
    return bytes_of_rows(spec, rows);
}

/// The same for all micro-batches in flight.
inline std::size_t message_bytes(const ChannelSpec& spec, int rank) {
    return static_cast<std::size_t>(spec.window) * slot_message_bytes(spec, rank);
}

/// Bytes of an edge on a rank, at most, for rows on their way to where peers find them.
inline constexpr std::size_t kStaging = std::size_t{32} << 20;

/// Do rows or gradients go from one rank to another?
inline bool carries(const ChannelSpec& spec, int from, int to) {
    const std::size_t fanout = spec.consumers.size() / spec.producers.size();
    const auto joined = [&](int producer, int consumer) {
        const auto up = seat_on(spec.producers, producer), down = seat_on(spec.consumers, consumer);
        return up && down &&
               static_cast<std::size_t>(down->replica) / fanout == static_cast<std::size_t>(up->replica);
    };
    return from != to && (joined(from, to) || (spec.carries_gradient && joined(to, from)));
}

/// Bytes that a GPU keeps for rows that are written over before they are sent to another: gradients, or rows
/// without.
inline std::size_t direct_staging(const ChannelSpec& spec, int rank) {
    std::size_t bytes = 0;
    if (!spec.carries_gradient && seat_on(spec.producers, rank)) bytes = bytes_of_rows(spec, spec.max_sent);
    if (spec.carries_gradient && seat_on(spec.consumers, rank))
        bytes = bytes_of_rows(spec, spec.max_received);
    return std::min(kStaging, 2 * static_cast<std::size_t>(spec.window) * bytes);
}

/// Of a GPU, for each way to or from another: twice NCCL's buffers of 4 MiB a block. Nobody has measured it.
inline constexpr std::size_t kNcclWay = std::size_t{32} << 20;

/// Ranks that take part, each once: producers, then those consumers that are no producers.
inline std::vector<int> ranks_of(const ChannelSpec& spec) {
    std::vector<int> ranks;
    for (const auto& replica : spec.producers) ranks.insert(ranks.end(), replica.begin(), replica.end());
    for (const auto& replica : spec.consumers)
        for (const int rank : replica)
            if (!seat_on(spec.producers, rank)) ranks.push_back(rank);
    return ranks;
}

/// Bytes that a rank's GPU needs beside rank_bytes() where rows go from GPU to GPU, by NCCL or without.
inline std::size_t direct_bytes(const ChannelSpec& spec, int rank, bool by_nccl) {
    std::size_t ways = 0;
    for (const int other : ranks_of(spec))
        ways += (carries(spec, rank, other) ? 1 : 0) + (carries(spec, other, rank) ? 1 : 0);
    return ways == 0 ? 0 : direct_staging(spec, rank) + (by_nccl ? ways * kNcclWay : 0);
}

}  // namespace maestro::channel
