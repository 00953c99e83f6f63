#include "parallel/context_masks.hpp"

#include <algorithm>

#include "backend/host_access.hpp"

namespace maestro::parallel {

namespace {

/// Returns the cumulative sequence lengths of a slice: the slice row at which each sequence begins, followed
/// by the number of rows. With `cut_only`, sequences that are whole in one slice count as empty.
std::vector<std::int32_t> cu_seqlens(const Partition& partition, int slice, bool cut_only) {
    std::vector<std::int32_t> offsets(static_cast<std::size_t>(partition.sequences()) + 1, 0);
    for (const RowRange& range : partition.slice(slice))
        if (!cut_only || partition.is_cut(range.sequence))
            offsets[static_cast<std::size_t>(range.sequence) + 1] += static_cast<std::int32_t>(range.count);
    for (std::size_t s = 1; s < offsets.size(); ++s) offsets[s] += offsets[s - 1];
    return offsets;
}

/// Returns the mask between the queries of slice `query_slice` and the keys that `key_slice` sends. A query
/// attends to the keys of its sequence, under a causal mask to those at its position or before. Keys lie in
/// the order of their positions, so these are always the first of the sequence's keys and one number per
/// query describes them.
ops::VarlenMask mask_between(const Partition& partition, AttentionMask mask, int query_slice, int key_slice) {
    ops::VarlenMask between{
        cu_seqlens(partition, query_slice, false), cu_seqlens(partition, key_slice, true), {}};
    const auto keys = partition.slice(key_slice);
    std::size_t first = 0;  // the first range of keys of the query's sequence
    for (const RowRange& queries : partition.slice(query_slice)) {
        while (first < keys.size() && keys[first].sequence < queries.sequence) ++first;
        for (std::int64_t row = queries.first; row < queries.first + queries.count; ++row) {
            std::int64_t limit = 0;
            for (std::size_t k = first; k < keys.size() && keys[k].sequence == queries.sequence; ++k)
                limit += mask == AttentionMask::causal
                             ? std::clamp<std::int64_t>(row + 1 - keys[k].first, 0, keys[k].count)
                             : keys[k].count;
            between.kv_limit.push_back(partition.is_cut(queries.sequence) ? static_cast<std::int32_t>(limit)
                                                                          : 0);
        }
    }
    return between;
}

}  // namespace

ContextMasks::ContextMasks(const Sequences& sequences, const Mesh& mesh) {
    const Partition& partition = sequences.partition;
    const int slices = partition.degrees().cp, slice = mesh.cp_rank();
    // Under all-to-all a rank attends with some heads to whole sequences, so that its mask is that of one
    // rank.
    const bool whole_sequences = slices > 1 && mesh.context_kind() == ContextKind::all_to_all;
    const std::vector<std::int32_t> offsets =
        whole_sequences ? std::vector(partition.offsets().begin(), partition.offsets().end())
                        : cu_seqlens(partition, slice, false);
    mask = sequences.mask == AttentionMask::causal ? ops::causal_mask(offsets) : ops::full_mask(offsets);
    if (whole_sequences) {
        for (int j = 0; j < slices; ++j) {
            slice_rows.push_back(partition.slice_rows(j));
            for (const RowRange& range : partition.slice(j))
                for (std::int64_t row = range.first; row < range.first + range.count; ++row)
                    packed_rows.push_back(offsets[static_cast<std::size_t>(range.sequence)] +
                                          static_cast<std::int32_t>(row));
        }
        return;
    }
    // Every rank computes how many rows each slice sends, so that the ranks of the ring agree on the sizes of
    // their messages without exchanging them.
    for (int j = 0; j < slices && slices > 1; ++j) {
        ring_row_counts.push_back(cu_seqlens(partition, j, true).back());
        ring_masks.push_back(j == slice ? ops::VarlenMask{}
                                        : mask_between(partition, sequences.mask, slice, j));
    }
    // Only rows of cut sequences are sent: no query of another slice attends to the keys of a whole one.
    std::int32_t row = 0;
    for (const RowRange& range : partition.slice(slice))
        for (std::int64_t i = 0; i < range.count; ++i, ++row)
            if (partition.is_cut(range.sequence)) ring_rows.push_back(row);
}

void ContextMasks::copy_to_device(backend::Backend& backend, bool backward, std::int64_t most_sequences,
                                  backend::Arena& arena) {
    device_ring_rows = backend::to_device(backend, ring_rows, arena);
    device_packed_rows = backend::to_device(backend, packed_rows, arena);
    // In a ring, the slices whose keys arrive may have more rows than this one. Memory is planned as if all
    // sequences of a micro-batch were cut.
    const auto queries = static_cast<std::int64_t>(mask.kv_limit.size());
    std::int64_t keys = queries;
    for (const std::int64_t sent : ring_row_counts) keys = std::max(keys, sent);
    const auto masks = std::max<std::int64_t>(1, static_cast<std::int64_t>(ring_masks.size()));
    tables.reserve(backend, masks, {queries, keys, most_sequences}, backward, arena);
}

bool ContextMasks::has_ring_rows() const {
    return std::any_of(ring_row_counts.begin(), ring_row_counts.end(), [](std::int64_t n) { return n > 0; });
}

}  // namespace maestro::parallel
