// From the samples of a micro-batch to the rows of one rank: which tokens, pictures and targets it works on.
#include <algorithm>
#include <array>
#include <numeric>

#include "model/language_batch.hpp"

namespace maestro::model {

namespace {
/// The id that stands, in a list of token ids, for a row of the encoder of this index in expansions_.
std::int32_t encoder_id(std::size_t encoder) {
    return -1 - static_cast<std::int32_t>(encoder);
}
/// Counts the rotary positions of one sample. Along one axis, rows are numbered. Along three, a text moves on
/// by 1 in all of them; the tokens of a picture have one time, and their row and column in it, all counted
/// from the position where it stands; and what follows stands behind its longer side (Qwen2-VL's M-RoPE).
class PositionCounter {
public:
    explicit PositionCounter(std::vector<std::vector<std::int32_t>>& positions) : positions_(positions) {}

    void add_tokens(std::size_t count) {
        for (std::vector<std::int32_t>& axis : positions_) {
            axis.resize(axis.size() + count);
            std::iota(axis.end() - static_cast<std::ptrdiff_t>(count), axis.end(), next_);
        }
        next_ += static_cast<std::int32_t>(count);
    }
    void add_item(RowGrid grid) {
        if (positions_.size() == 1) return add_tokens(static_cast<std::size_t>(grid.rows()));
        for (std::int32_t y = 0; y < grid.height; ++y)
            for (std::int32_t x = 0; x < grid.width; ++x) {
                const std::array axes = {next_, next_ + y, next_ + x};
                for (std::size_t axis = 0; axis < positions_.size(); ++axis)
                    positions_[axis].push_back(axes[axis]);
            }
        next_ += std::max(grid.height, grid.width);
    }

private:
    std::vector<std::vector<std::int32_t>>& positions_;
    std::int32_t next_ = 0;
};

}  // namespace

std::size_t position_axes(const ModelSpec& spec) {
    return std::any_of(spec.mixers.begin(), spec.mixers.end(),
                       [](const MixerForm& mixer) {
                           const auto* attention = std::get_if<AttentionForm>(&mixer);
                           return attention && attention->rope_sections[0] > 0;
                       })
               ? 3
               : 1;
}

std::vector<Language::Marked> Language::markers_of(const SampleView& sample) const {
    std::vector<Marked> found;
    if (!role_.markers.any_in(sample.tokens)) return found;
    for (std::size_t j = 0; j < sample.tokens.size(); ++j) {
        const auto kind = role_.markers.kind_of(sample.tokens[j]);
        if (!kind) continue;
        MAESTRO_CHECK(found.size() < sample.items.size() && sample.items[found.size()].item.kind == *kind,
                      "sample {} has more markers than items, or others", sample.id);
        // Without an encoder the marker is a token like any other, and the text can be trained alone.
        Marked marked{.token = j, .encoder = reader_of(*kind, expansions_)};
        if (marked.encoder) marked.grid = expansions_[*marked.encoder].grid(sample.items[found.size()].item);
        found.push_back(marked);
    }
    return found;
}

Language::PackedBatch Language::pack(const Batch& batch) const {
    PackedBatch packed;
    packed.positions.resize(position_axes(spec_));
    std::size_t tokens = 0;
    for (const SampleView& sample : batch.samples) tokens += sample.tokens.size();
    packed.targets.reserve(tokens);
    for (const SampleView& sample : batch.samples) {
        const std::size_t first_row = packed.ids.size();
        PositionCounter positions(packed.positions);
        std::size_t item = 0, text = 0;  // where the present run of tokens begins
        std::int32_t answer = -1;        // to the last item
        const auto add_text = [&](std::size_t end) {
            packed.ids.insert(packed.ids.end(), sample.tokens.begin() + static_cast<std::ptrdiff_t>(text),
                              sample.tokens.begin() + static_cast<std::ptrdiff_t>(end));
            positions.add_tokens(end - text);
        };
        // The row before a token predicts it. A token without a loss weight is no target, so that its
        // logits are not computed at all.
        const auto add_targets = [&](std::size_t begin, std::size_t end) {
            for (std::size_t j = std::max<std::size_t>(begin, 1); j < end; ++j) {
                if (sample.weights[j] == 0.0f) continue;
                const bool flagged = item > 0 && (sample.flags[j] & 1) != 0;
                if (flagged && answer < 0) answer = packed.answer_count++;
                packed.targets.push_back(
                    {.packed_row = static_cast<std::int32_t>(packed.ids.size() + j - text) - 1,
                     .token = sample.tokens[j],
                     .weight = sample.weights[j],
                     .answer = flagged ? answer : -1});
            }
        };
        std::size_t next = 0;  // token
        for (const Marked& marked : markers_of(sample)) {
            add_targets(next, marked.token);
            next = marked.token + 1;
            ++item;
            answer = -1;
            if (!marked.encoder) continue;
            add_text(marked.token);
            text = next;
            packed.ids.insert(packed.ids.end(), static_cast<std::size_t>(marked.grid.rows()),
                              encoder_id(*marked.encoder));
            positions.add_item(marked.grid);
        }
        add_targets(next, sample.tokens.size());
        add_text(sample.tokens.size());
        packed.lengths.push_back(static_cast<std::int64_t>(packed.ids.size() - first_row));
    }
    return packed;
}

Language::State Language::partition(const PackedBatch& packed) const {
    using parallel::AttentionMask;
    State state(
        parallel::Sequences(parallel::Partition(packed.lengths, AttentionMask::causal, mesh_.degrees()),
                            AttentionMask::causal, mesh_));
    const parallel::Partition& partition = state.sequences.partition;
    const auto slice = partition.slice(mesh_.cp_rank());
    state.slice_ids = parallel::pick(packed.ids, slice, partition.offsets());
    for (std::int32_t& id : state.slice_ids)
        id = id >= vocabulary_.begin && id < vocabulary_.end
                 ? id - static_cast<std::int32_t>(vocabulary_.begin)
                 : -1;
    // A slice holds parts of a sequence that are not next to each other. Positions count from the start of
    // the sample all the same, or rotary embeddings would see wrong distances between them.
    for (const std::vector<std::int32_t>& along_axis : packed.positions)
        state.slice_positions.push_back(parallel::pick(along_axis, slice, partition.offsets()));
    const auto& tp_rows = state.sequences.tp_rows;
    state.first_local_row =
        std::accumulate(tp_rows.begin(), tp_rows.begin() + mesh_.tp_rank(), std::int64_t{0});
    state.local_rows = tp_rows[static_cast<std::size_t>(mesh_.tp_rank())];
    state.embedding_rows.resize(role_.inputs.size());
    state.input_rows.assign(role_.inputs.size(), std::vector<std::int64_t>(packed.lengths.size(), 0));
    if (role_.inputs.empty()) return state;
    std::int32_t local_row = 0;
    for (const parallel::RowRange& range : partition.rows_of(mesh_.cp_rank(), mesh_.tp_rank())) {
        // Read from the packed ids: among those of the slice, an edge's row and another rank's token are
        // both -1.
        const std::int32_t* const ids = packed.ids.data() + partition.offsets()[range.sequence] + range.first;
        std::size_t encoder = 0;
        for (std::size_t e = 0; e < role_.inputs.size(); ++e) {
            // A teacher and the stage before deliver every row of the sample.
            if (role_.inputs[e].tensor != EdgeTensor::embeddings) {
                state.input_rows[e][range.sequence] += range.count;
                continue;
            }
            const std::int32_t wanted = encoder_id(encoder++);
            for (std::int64_t row = 0; row < range.count; ++row) {
                if (ids[row] != wanted) continue;
                state.embedding_rows[e].push_back(local_row + static_cast<std::int32_t>(row));
                ++state.input_rows[e][range.sequence];
            }
        }
        local_row += static_cast<std::int32_t>(range.count);
    }
    return state;
}

std::vector<double> Language::loss_shares(const PackedBatch& packed, double loss_scale) {
    std::vector<double> shares(packed.lengths.size(), 0.0);
    std::size_t sample = 0;
    std::int64_t end = packed.lengths.empty() ? 0 : packed.lengths[0];
    for (const PackedBatch::Target& target : packed.targets) {
        while (target.packed_row >= end) end += packed.lengths[++sample];
        shares[sample] += loss_scale * static_cast<double>(target.weight);
    }
    return shares;
}

Language::Targets Language::worst_case_targets(const PackedBatch& packed, const State& state) const {
    // Where targets stand in their samples decides which slice and which tp rank has them. The most that one
    // slice can have is all of them, or as many as it has rows.
    std::int64_t remaining = std::min(state.sequences.rows, static_cast<std::int64_t>(packed.targets.size()));
    Targets targets;
    targets.tokens.assign(static_cast<std::size_t>(remaining), 0);
    targets.answers.assign(static_cast<std::size_t>(remaining), -1);
    targets.weights.assign(static_cast<std::size_t>(remaining), 1.0f);
    for (const std::int64_t rows : state.sequences.tp_rows) {
        targets.by_tp_rank.push_back(std::min(rows, remaining));
        remaining -= targets.by_tp_rank.back();
    }
    const auto local =
        static_cast<std::size_t>(targets.by_tp_rank[static_cast<std::size_t>(mesh_.tp_rank())]);
    targets.predicting_rows.assign(local, 0);
    targets.local_by_sample.assign(packed.lengths.size(), 0);
    if (!targets.local_by_sample.empty()) targets.local_by_sample[0] = static_cast<std::int64_t>(local);
    return targets;
}

Language::Targets Language::targets_of(const PackedBatch& packed, const State& state) const {
    const parallel::Partition& partition = state.sequences.partition;
    std::vector<std::int32_t> slice_row_of(packed.ids.size(), -1);  // by packed row; -1: in another slice
    std::int32_t next = 0;
    for (const parallel::RowRange& range : partition.slice(mesh_.cp_rank()))
        for (std::int64_t row = range.first; row < range.first + range.count; ++row)
            slice_row_of[partition.offsets()[range.sequence] + row] = next++;
    const auto& tp_rows = state.sequences.tp_rows;
    Targets targets;
    targets.answer_count = packed.answer_count;
    targets.by_tp_rank.assign(tp_rows.size(), 0);
    targets.local_by_sample.assign(packed.lengths.size(), 0);
    std::size_t sample = 0, tp = 0;
    std::int64_t tp_end = tp_rows[0];  // the slice row after the last one of rank tp
    // Targets ascend by packed row, and the rows of a slice keep the order of packed rows, so one pass over
    // both the samples and the tp ranks is enough, and target rows come out by tp rank.
    for (const PackedBatch::Target& target : packed.targets) {
        while (target.packed_row >= partition.offsets()[sample + 1]) ++sample;
        const std::int32_t slice_row = slice_row_of[target.packed_row];
        if (slice_row < 0) continue;
        while (slice_row >= tp_end) tp_end += tp_rows[++tp];
        ++targets.by_tp_rank[tp];
        targets.tokens.push_back(target.token);
        targets.weights.push_back(target.weight);
        targets.answers.push_back(target.answer);
        if (static_cast<int>(tp) != mesh_.tp_rank()) continue;
        targets.predicting_rows.push_back(slice_row - static_cast<std::int32_t>(state.first_local_row));
        ++targets.local_by_sample[sample];
    }
    return targets;
}

HostBytes Language::host_bytes(const Saved& saved) const {
    if (spec_.experts.count == 0) return {};
    return layers_.host_bytes(static_cast<const State&>(saved).sequences);
}

std::vector<std::vector<std::int64_t>> Language::input_rows(const Batch& batch) const {
    std::vector<std::vector<std::int64_t>> rows(role_.inputs.size());
    if (rows.empty()) return rows;
    // The rows of items that encoders fill, as pack() lays them.
    struct Filled {
        std::size_t encoder;
        std::int64_t begin, end;  // rows of the sample
    };
    std::vector<std::vector<Filled>> filled;  // by sample
    std::vector<std::int64_t> lengths;
    for (const SampleView& sample : batch.samples) {
        std::vector<Filled>& of_sample = filled.emplace_back();
        std::int64_t more = 0;  // rows than tokens
        for (const Marked& marked : markers_of(sample)) {
            if (!marked.encoder) continue;
            const std::int64_t begin = static_cast<std::int64_t>(marked.token) + more;
            of_sample.push_back({*marked.encoder, begin, begin + marked.grid.rows()});
            more += marked.grid.rows() - 1;
        }
        lengths.push_back(static_cast<std::int64_t>(sample.tokens.size()) + more);
    }
    for (std::vector<std::int64_t>& of_edge : rows) of_edge.assign(lengths.size(), 0);
    const parallel::Partition partition(lengths, parallel::AttentionMask::causal, mesh_.degrees());
    for (const parallel::RowRange& range : partition.rows_of(mesh_.cp_rank(), mesh_.tp_rank())) {
        const std::int64_t first = range.first, last = first + range.count;
        std::size_t encoder = 0;
        for (std::size_t e = 0; e < rows.size(); ++e) {
            std::int64_t& of_sample = rows[e][range.sequence];
            if (role_.inputs[e].tensor != EdgeTensor::embeddings) {
                of_sample += range.count;
                continue;
            }
            for (const Filled& item : filled[range.sequence])
                if (item.encoder == encoder)
                    of_sample +=
                        std::max<std::int64_t>(0, std::min(item.end, last) - std::max(item.begin, first));
            ++encoder;
        }
    }
    return rows;
}

}  // namespace maestro::model
