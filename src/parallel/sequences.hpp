// The sequences of a micro-batch as one cp rank sees them: which of their rows are in its slice.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "parallel/mesh.hpp"
#include "parallel/partition.hpp"

namespace maestro::parallel {

struct Sequences {
    /// Describes the slice of this rank.
    Sequences(Partition partition_, AttentionMask mask_, const Mesh& mesh)
        : partition(std::move(partition_)),
          mask(mask_),
          rows(partition.slice_rows(mesh.cp_rank())),
          tp_rows(partition.tp_rows(mesh.cp_rank()).begin(), partition.tp_rows(mesh.cp_rank()).end()),
          most_sequences(partition.sequences()) {}

    Partition partition;
    AttentionMask mask;                   ///< which rows of its sequence a row may attend to
    std::int64_t rows = 0;                ///< of the slice
    std::vector<std::int64_t> tp_rows;    ///< rows of each tp rank of the slice
    std::vector<std::int64_t> lane_rows;  ///< model::Batch::lane_rows
    /// Memory is planned with one micro-batch: another one of no more rows has at most so many sequences.
    std::int64_t most_sequences = 0;
    /// By sequence: the share of its targets' loss weights in the sum of the step. Empty: no targets.
    std::vector<double> loss_shares;
    /// f64[1]: here layers with experts add the loss that balances them. Absent: they add it nowhere.
    Tensor balance_loss;
};

/// Returns the elements of `packed`, a list by packed row, at the rows of `ranges`, in their order.
/// offsets[s] is the packed row at which sequence s begins.
template <class T>
std::vector<T> pick(const std::vector<T>& packed, std::span<const RowRange> ranges,
                    std::span<const std::int32_t> offsets) {
    std::vector<T> picked;
    for (const RowRange& range : ranges) {
        const auto begin = packed.begin() + offsets[range.sequence] + range.first;
        picked.insert(picked.end(), begin, begin + range.count);
    }
    return picked;
}

}  // namespace maestro::parallel
