#include "parallel/sequences.hpp"

#include <algorithm>
#include <utility>

#include "backend/host_access.hpp"

namespace maestro::parallel {

namespace {

/// Where each sequence's rows begin in a slice, S + 1; those that are not cut left out where `cut_only`.
std::vector<std::int32_t> offsets_of(const Partition& partition, int slice, bool cut_only) {
    std::vector<std::int32_t> offsets(static_cast<std::size_t>(partition.sequences()) + 1, 0);
    for (const RowRun& run : partition.slice(slice))
        if (!cut_only || partition.is_cut(run.sequence))
            offsets[static_cast<std::size_t>(run.sequence) + 1] += static_cast<std::int32_t>(run.count);
    for (std::size_t s = 1; s < offsets.size(); ++s) offsets[s] += offsets[s - 1];
    return offsets;
}

/// Keys of `slice` that every query of `own` sees: those of its sequence, if it is cut, and where attention
/// is causal those at its position or before.
ops::Visible between(const Partition& partition, Attention attention, int own, int slice) {
    ops::Visible visible{offsets_of(partition, own, false), offsets_of(partition, slice, true), {}};
    const auto keys = partition.slice(slice);
    std::size_t at = 0;  // the first run of keys of the query's sequence
    for (const RowRun& run : partition.slice(own)) {
        while (at < keys.size() && keys[at].sequence < run.sequence) ++at;
        for (std::int64_t row = run.first; row < run.first + run.count; ++row) {
            std::int64_t seen = 0;
            for (std::size_t k = at; k < keys.size() && keys[k].sequence == run.sequence; ++k)
                seen += attention == Attention::causal
                            ? std::clamp<std::int64_t>(row + 1 - keys[k].first, 0, keys[k].count)
                            : keys[k].count;
            visible.seen.push_back(partition.is_cut(run.sequence) ? static_cast<std::int32_t>(seen) : 0);
        }
    }
    return visible;
}

}  // namespace

Sequences::Sequences(Partition partition_, Attention attention, const Peers& peers)
    : partition(std::move(partition_)), rows(partition.slice_rows(peers.cp())) {
    const int slices = partition.degrees().cp, slice = peers.cp();
    shares.assign(partition.shares(slice).begin(), partition.shares(slice).end());
    const bool gathers = slices > 1 && peers.kind == ContextKind::all_to_all;
    const std::vector<std::int32_t> offsets =
        gathers ? std::vector(partition.offsets().begin(), partition.offsets().end())
                : offsets_of(partition, slice, false);
    own = attention == Attention::causal ? ops::see_before(offsets) : ops::see_all(offsets);
    if (gathers) {
        for (int j = 0; j < slices; ++j) {
            slice_rows.push_back(partition.slice_rows(j));
            for (const RowRun& run : partition.slice(j))
                for (std::int64_t row = run.first; row < run.first + run.count; ++row)
                    packed.push_back(offsets[static_cast<std::size_t>(run.sequence)] +
                                     static_cast<std::int32_t>(row));
        }
        return;
    }
    for (int j = 0; j < slices && slices > 1; ++j) {
        travelling_rows.push_back(offsets_of(partition, j, true).back());
        others.push_back(j == slice ? ops::Visible{} : between(partition, attention, slice, j));
    }
    std::int32_t row = 0;
    for (const RowRun& run : partition.slice(slice))
        for (std::int64_t i = 0; i < run.count; ++i, ++row)
            if (partition.is_cut(run.sequence)) travelling.push_back(row);
}

void Sequences::hand_over(backend::Backend& backend, backend::Arena& saved) {
    travelling_places = backend::given(backend, travelling, saved);
    packed_places = backend::given(backend, packed, saved);
}

bool Sequences::ring() const {
    return std::any_of(travelling_rows.begin(), travelling_rows.end(), [](std::int64_t n) { return n > 0; });
}

}  // namespace maestro::parallel
