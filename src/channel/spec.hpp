// The description of an edge: who sends, who receives, how much, and how many bytes that takes on each rank.
// Plain values and pure functions; the memory plan and the channels use the same ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.hpp"

namespace maestro::channel {

/// One end of an edge: the ranks of each replica group (graph::Section::replica_groups), the leader first.
/// All have equally many. In this folder, a group is a replica group.
using Side = std::vector<std::vector<int>>;

struct ChannelSpec {
    std::string name;               ///< "vision-language"
    Side producers;                 ///< the upstream section
    Side consumers;                 ///< the downstream section; the larger number is a multiple of the other
    std::int64_t width = 0;         ///< elements of a row
    DType dtype = DType::f32;       ///< of rows and gradients
    int window = 1;                 ///< micro-batches of a producer that may be in flight, >= 1
    std::int64_t max_sent = 0;      ///< largest number of rows in a rank's output of a micro-batch
    std::int64_t max_received = 0;  ///< largest number of rows of such a micro-batch that a rank receives
    std::int64_t max_samples = 0;   ///< largest number of samples of such a micro-batch
    bool carries_gradient = true;
    bool pointer = false;  ///< both ends of every group are the same rank: a pointer is passed
    /// An emulated link delays rows and gradients by this much, and by this much for each row.
    double latency_s = 0, row_s = 0;
    bool by_messages = false;  ///< rows travel in messages, whose memory counts: see mark_messages()
};

inline bool is_delayed(const ChannelSpec& spec) {
    return !spec.pointer && (spec.latency_s > 0 || spec.row_s > 0);
}

/// Returns how many groups of the producer serve each group of the consumer: 1 unless there are more
/// producers than consumers (fan-in).
inline int fan_in(const ChannelSpec& spec) {
    return static_cast<int>(std::max<std::size_t>(1, spec.producers.size() / spec.consumers.size()));
}

/// Returns how many groups of the consumer each group of the producer serves.
inline int fan_out(const ChannelSpec& spec) {
    return static_cast<int>(std::max<std::size_t>(1, spec.consumers.size() / spec.producers.size()));
}

/// Whether rows may go from this one of `producers` groups to this one of `consumers`. Groups serve each
/// other in proportion: with fan-in, consecutive producers serve one consumer, and otherwise one producer
/// serves consecutive consumers.
inline bool serves(std::size_t producers, std::size_t consumers, int producer, int consumer) {
    const auto each = [](std::size_t of, std::size_t by) {
        return static_cast<int>(std::max<std::size_t>(1, of / by));
    };
    return producer / each(producers, consumers) == consumer / each(consumers, producers);
}

inline bool serves(const ChannelSpec& spec, int producer, int consumer) {
    return serves(spec.producers.size(), spec.consumers.size(), producer, consumer);
}

/// Returns the place of a group of the producer among the fan_in() ones that serve the same consumer.
inline int source_of(const ChannelSpec& spec, int producer) {
    return producer % fan_in(spec);
}

/// Returns the place of a group of the consumer among the fan_out() ones that the same producer serves.
inline int target_of(const ChannelSpec& spec, int consumer) {
    return consumer % fan_out(spec);
}

/// Largest number of rows that a rank of a consumer receives of one micro-batch from each producer that
/// serves it.
inline std::int64_t max_received_of_all(const ChannelSpec& spec) {
    return fan_in(spec) * spec.max_received;
}

/// The place of a rank on one side of an edge.
struct GroupRank {
    int group = 0, rank = 0;  ///< rank within the group
};

inline std::optional<GroupRank> find_rank(const Side& side, int rank) {
    for (std::size_t r = 0; r < side.size(); ++r)
        if (const auto at = std::find(side[r].begin(), side[r].end(), rank); at != side[r].end())
            return GroupRank{static_cast<int>(r), static_cast<int>(at - side[r].begin())};
    return std::nullopt;
}

inline std::size_t bytes_of_rows(const ChannelSpec& spec, std::int64_t rows) {
    return static_cast<std::size_t>(rows * spec.width) * size_of(spec.dtype);
}

// The flags of a rank are in two arrays, for the slots of micro-batches in flight, so that their number grows
// neither with the batch nor with the number of ranks that other groups have:
//
//   arrivals          [source, producer rank, slot]          which micro-batch is in the slot
//   acknowledgements  [slot, target, sample, consumer rank]  of the micro-batch that this rank put there
//
// "Sample" counts those of the micro-batch that go to the same group of the consumer.

/// Flags by which producers announce micro-batches to a rank.
inline std::size_t arrival_count(const ChannelSpec& spec) {
    return static_cast<std::size_t>(fan_in(spec)) * spec.producers.front().size() *
           static_cast<std::size_t>(spec.window);
}

/// Flags by which consumers acknowledge the samples of one micro-batch to a rank.
inline std::size_t slot_ack_count(const ChannelSpec& spec) {
    return static_cast<std::size_t>(fan_out(spec)) * static_cast<std::size_t>(spec.max_samples) *
           spec.consumers.front().size();
}

/// Flags that a rank has for a slot.
inline std::size_t slot_flag_count(const ChannelSpec& spec) {
    return static_cast<std::size_t>(fan_in(spec)) * spec.producers.front().size() + slot_ack_count(spec);
}

/// Offset of the delivery times, which follow the flags. On an emulated link each flag has one: the time from
/// which it can be seen.
inline std::size_t delivery_times_offset(const ChannelSpec& spec) {
    return sizeof(std::uint64_t) * static_cast<std::size_t>(spec.window) * slot_flag_count(spec);
}

/// Bytes of the flags and of their delivery times. Rows begin behind them, on a new cache line.
inline std::size_t flag_bytes(const ChannelSpec& spec) {
    constexpr std::size_t kAlign = 64;
    const std::size_t bytes = (is_delayed(spec) ? 2 : 1) * delivery_times_offset(spec);
    return (bytes + kAlign - 1) / kAlign * kAlign;
}

/// Bytes that one micro-batch in flight takes on a rank, for the rows that it receives, one micro-batch from
/// each producer that serves it, and for the gradients that return to it.
struct SlotBytes {
    std::size_t rows = 0, gradient = 0;
    std::size_t both() const { return rows + gradient; }
};

/// Bytes of the flags of one slot, and of their delivery times.
inline std::size_t slot_flag_bytes(const ChannelSpec& spec, int rank) {
    if (!find_rank(spec.consumers, rank) && !find_rank(spec.producers, rank)) return 0;
    return (is_delayed(spec) ? 2 : 1) * sizeof(std::uint64_t) * slot_flag_count(spec);
}

inline SlotBytes slot_bytes(const ChannelSpec& spec, int rank) {
    SlotBytes bytes;
    if (!spec.pointer && find_rank(spec.consumers, rank))
        bytes.rows = bytes_of_rows(spec, max_received_of_all(spec));
    if (spec.carries_gradient && find_rank(spec.producers, rank))
        bytes.gradient = bytes_of_rows(spec, spec.max_sent);
    return bytes;
}

/// Offset of the slots for gradients in the memory of `rank`: behind the flags and the slots for rows.
inline std::size_t gradients_offset(const ChannelSpec& spec, int rank) {
    return flag_bytes(spec) + static_cast<std::size_t>(spec.window) * slot_bytes(spec, rank).rows;
}

/// Bytes that `rank` allocates for the edge: flags, and slots for each micro-batch in flight.
inline std::size_t rank_bytes(const ChannelSpec& spec, int rank) {
    if (!find_rank(spec.consumers, rank) && !find_rank(spec.producers, rank)) return 0;
    return flag_bytes(spec) + static_cast<std::size_t>(spec.window) * slot_bytes(spec, rank).both();
}

/// Bytes of messages that one micro-batch in flight takes on `rank`, if the edge's rows travel in messages.
/// One buffer per slot is enough: a slot's rows have been delivered before their gradient is sent back.
inline std::size_t slot_message_bytes(const ChannelSpec& spec, int rank) {
    if (!spec.by_messages) return 0;
    std::int64_t rows = 0;
    if (find_rank(spec.producers, rank)) rows += spec.max_sent;
    if (find_rank(spec.consumers, rank)) rows += max_received_of_all(spec);
    return bytes_of_rows(spec, rows);
}

/// Bytes of messages that all micro-batches in flight take on `rank`.
inline std::size_t message_bytes(const ChannelSpec& spec, int rank) {
    return static_cast<std::size_t>(spec.window) * slot_message_bytes(spec, rank);
}

/// Largest size of an edge's staging memory on a rank, which holds rows on their way to the memory of peers.
inline constexpr std::size_t kMaxStagingBytes = std::size_t{32} << 20;

/// Bytes of pinned memory of the host through which a rank's GPU sends rows and gradients, if these do not
/// travel directly: what it sends for all micro-batches in flight, to all producers that serve it.
inline std::size_t host_staging(const ChannelSpec& spec, int rank) {
    std::int64_t rows = 0;
    if (find_rank(spec.producers, rank)) rows += spec.max_sent;
    if (spec.carries_gradient && find_rank(spec.consumers, rank)) rows += max_received_of_all(spec);
    return std::min(kMaxStagingBytes, static_cast<std::size_t>(spec.window) * bytes_of_rows(spec, rows));
}

/// Whether rows or gradients travel from rank `from` to rank `to`.
inline bool carries(const ChannelSpec& spec, int from, int to) {
    const auto connected = [&](int producer, int consumer) {
        const auto up = find_rank(spec.producers, producer), down = find_rank(spec.consumers, consumer);
        return up && down && serves(spec, up->group, down->group);
    };
    return from != to && (connected(from, to) || (spec.carries_gradient && connected(to, from)));
}

/// The ranks of an edge, each once: all producers, then those consumers that are not producers too.
inline std::vector<int> ranks_of(const ChannelSpec& spec) {
    std::vector<int> ranks;
    for (const auto& group : spec.producers) ranks.insert(ranks.end(), group.begin(), group.end());
    for (const auto& group : spec.consumers)
        for (const int rank : group)
            if (!find_rank(spec.producers, rank)) ranks.push_back(rank);
    return ranks;
}

/// Bytes that a rank's GPU needs beside rank_bytes() if rows travel directly from GPU to GPU: staging memory
/// for rows that may be overwritten before they have been sent, which are gradients, and rows of an edge
/// without gradients. 0 if the rank exchanges rows with no other one.
inline std::size_t direct_staging(const ChannelSpec& spec, int rank) {
    const std::vector<int> ranks = ranks_of(spec);
    if (std::none_of(ranks.begin(), ranks.end(),
                     [&](int other) { return carries(spec, rank, other) || carries(spec, other, rank); }))
        return 0;
    std::size_t bytes = 0;
    if (!spec.carries_gradient && find_rank(spec.producers, rank)) bytes = bytes_of_rows(spec, spec.max_sent);
    if (spec.carries_gradient && find_rank(spec.consumers, rank))
        bytes = bytes_of_rows(spec, max_received_of_all(spec));
    return std::min(kMaxStagingBytes, 2 * static_cast<std::size_t>(spec.window) * bytes);
}

}  // namespace maestro::channel
