#include "workload/slot_rows.hpp"

#include <algorithm>

namespace maestro::workload {

namespace {

/// The size of the largest part_of(size, i, count).
std::int64_t longest_part(std::int64_t size, int count) {
    return (size + count - 1) / count;
}

/// The rows of a causal sequence in its largest slice. A slice has two of 2 cp chunks, and the first chunks
/// are one row longer where the length does not divide.
std::int64_t causal_slice(std::int64_t length, int cp) {
    // Slice c has the chunks c and 2 cp - 1 - c, which balances causal attention. Both are longer only where
    // chunk `cp` is, that is, where more than cp rows are left.
    const std::int64_t chunks = 2 * std::int64_t{cp}, left = length % chunks;
    return 2 * (length / chunks) + (left > cp ? 2 : left > 0 ? 1 : 0);
}

/// The output rows of the items of `micro_batch` samples in the largest slice of an encoder. Whole items are
/// distributed within the imbalance that Partition accepts; where items are cut instead, each adds at most
/// one unit to an even share.
std::int64_t items_slice(const SampleTable& table, const LaneSpec& lane) {
    const int cp = lane.degrees.cp, section = lane.section;
    const std::int64_t rows =
        table.sum_of_largest(lane.micro_batch, [&](std::int64_t i) { return table.output_rows(i, section); });
    if (cp == 1) return rows;
    const std::int64_t cut = table.sum_of_largest(lane.micro_batch, [&](std::int64_t i) {
        return table.output_rows(i, section) + (cp - 1) * table.units(section).sequences(table.items(i));
    });
    const auto distributed =
        static_cast<std::int64_t>(parallel::kMaxImbalance * static_cast<double>(longest_part(rows, cp)));
    return std::min(rows, std::max(distributed, cut / cp));
}

}  // namespace

std::int64_t max_slice_rows(const SampleTable& table, const LaneSpec& lane) {
    return table.once({lane.section, lane.micro_batch, lane.degrees.cp}, [&] {
        const model::Units& units = table.units(lane.section);
        if (units.encodes()) return items_slice(table, lane) * units.unit();
        return table.sum_of_largest(lane.micro_batch, [&](std::int64_t i) {
            return causal_slice(table.length(i, lane.section), lane.degrees.cp);
        });
    });
}

std::int64_t max_rows_sent(const SampleTable& table, const LaneSpec& producer) {
    return longest_part(max_slice_rows(table, producer) / table.units(producer.section).unit(),
                        producer.degrees.tp);
}

std::int64_t max_rows_received(const SampleTable& table, const LaneSpec& producer, const LaneSpec& consumer) {
    const SampleTable::Key key = {producer.section,     producer.micro_batch, 0,
                                  consumer.section + 1, consumer.micro_batch, consumer.degrees.cp,
                                  consumer.degrees.tp};
    return table.once(key, [&] {
        const auto slice_of = [&](std::int64_t i) {
            return causal_slice(table.length(i, consumer.section), consumer.degrees.cp);
        };
        // The tp ranks split the slice of a whole micro-batch, so a sample with others beside it may lie on
        // one tp rank alone.
        const std::int64_t beside = table.sum_of_largest(consumer.micro_batch - 1, slice_of);
        return table.sum_of_largest(producer.micro_batch, [&](std::int64_t i) {
            const std::int64_t rows = table.output_rows(i, producer.section);
            if (consumer.degrees.ranks() == 1) return rows;
            return std::min({rows, slice_of(i), longest_part(slice_of(i) + beside, consumer.degrees.tp)});
        });
    });
}

}  // namespace maestro::workload
