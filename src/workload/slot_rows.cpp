#include "workload/slot_rows.hpp"

#include <algorithm>

namespace maestro::workload {

namespace {

/// The longest part_of(size, ., count).
std::int64_t longest_part(std::int64_t size, int count) {
    return (size + count - 1) / count;
}

/// Of a causal sequence: the fullest slice has two of 2 cp chunks, the first chunks being the longer ones.
std::int64_t causal_slice(std::int64_t length, int cp) {
    const std::int64_t chunks = 2 * std::int64_t{cp}, left = length % chunks;
    return 2 * (length / chunks) + (left > cp ? 2 : left > 0 ? 1 : 0);
}

/// Of `micro_batch` pictures' rows, of any samples: within an uneven deal, or, where all pictures are cut, as
/// far from an even share as one unit for every picture makes it.
std::int64_t pictures_slice(const SampleTable& table, const Lane& lane) {
    const int cp = lane.degrees.cp, section = lane.section;
    const std::int64_t rows =
        table.most_of(lane.micro_batch, [&](std::int64_t i) { return table.output_rows(i, section); });
    if (cp == 1) return rows;
    const std::int64_t cut = table.most_of(lane.micro_batch, [&](std::int64_t i) {
        return table.output_rows(i, section) + (cp - 1) * static_cast<std::int64_t>(table.pictures(i).size());
    });
    const auto dealt =
        static_cast<std::int64_t>(parallel::kMaxImbalance * static_cast<double>(longest_part(rows, cp)));
    return std::min(rows, std::max(dealt, cut / cp));
}

}  // namespace

std::int64_t most_slice_rows(const SampleTable& table, const Lane& lane) {
    if (table.sees_pixels(lane.section)) return pictures_slice(table, lane) * table.unit(lane.section);
    return table.most_of(lane.micro_batch, [&](std::int64_t i) {
        return causal_slice(table.length(i, lane.section), lane.degrees.cp);
    });
}

std::int64_t most_sent(const SampleTable& table, const Lane& producer) {
    return longest_part(most_slice_rows(table, producer) / table.unit(producer.section), producer.degrees.tp);
}

std::int64_t most_received(const SampleTable& table, const Lane& producer, const Lane& consumer) {
    const auto own = [&](std::int64_t i) {
        return causal_slice(table.length(i, consumer.section), consumer.degrees.cp);
    };
    // The tp ranks share a slice of all samples of their micro-batch: with others beside it, a sample may lie
    // on one of them.
    const std::int64_t beside = table.most_of(consumer.micro_batch - 1, own);
    return table.most_of(producer.micro_batch, [&](std::int64_t i) {
        const std::int64_t rows = table.output_rows(i, producer.section);
        if (consumer.degrees.ranks() == 1) return rows;
        return std::min({rows, own(i), longest_part(own(i) + beside, consumer.degrees.tp)});
    });
}

}  // namespace maestro::workload
