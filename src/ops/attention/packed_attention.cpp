#include "ops/attention/packed_attention.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <limits>

#include "backend/host_access.hpp"
#include "kernels/elementwise.hpp"

namespace maestro::ops {

namespace {

using backend::AttentionArray;

constexpr std::int64_t kLaunchRows = 2048;  ///< rows of a launch, unless one sequence is longer

/// Returns how many sequences of this length a launch has room for.
std::int64_t sequences_per_launch(std::int64_t max_seqlen) {
    return std::max<std::int64_t>(kLaunchRows / max_seqlen, 1);
}

/// The lists of a launch: int64 offsets, of two words each, then int32 lengths.
constexpr AttentionArray kOffsets[] = {AttentionArray::q_offsets, AttentionArray::k_offsets,
                                       AttentionArray::value_offsets, AttentionArray::lse_offsets,
                                       AttentionArray::dvalue_offsets};
constexpr AttentionArray kLengths[] = {AttentionArray::q_lengths, AttentionArray::k_lengths};

/// Returns the words that a list occupies. The next list begins behind it, and cuDNN graphs require 16-byte
/// aligned addresses.
std::int64_t padded(std::int64_t words) {
    return (words + 3) / 4 * 4;
}
std::int64_t offset_words(std::int64_t sequences) {
    return static_cast<std::int64_t>(std::size(kOffsets)) * padded(2 * (sequences + 1));
}
std::int64_t length_words(std::int64_t sequences) {
    return static_cast<std::int64_t>(std::size(kLengths)) * padded(sequences);
}

}  // namespace

SequenceRows::SequenceRows(const VarlenMask& mask) {
    for (std::size_t s = 1; s < mask.cu_seqlens_q.size(); ++s) {
        const std::int32_t all_queries = mask.cu_seqlens_q[s] - mask.cu_seqlens_q[s - 1],
                           all_keys = mask.cu_seqlens_k[s] - mask.cu_seqlens_k[s - 1];
        Rows q{mask.cu_seqlens_q[s - 1], all_queries}, k{mask.cu_seqlens_k[s - 1], 0};
        while (q.count > 0 && mask.kv_limit[static_cast<std::size_t>(q.begin)] == 0) ++q.begin, --q.count;
        if (q.count > 0) k.count = mask.kv_limit[static_cast<std::size_t>(q.end() - 1)];
        gaps = gaps || q.count < all_queries || k.count < all_keys;
        if (q.count == 0) continue;
        queries.push_back(q);
        keys.push_back(k);
    }
}

std::vector<AttentionLaunch> attention_launches(const SequenceRows& rows) {
    std::vector<AttentionLaunch> launches;
    for (std::size_t s = 0; s < rows.queries.size(); ++s) {
        const std::int64_t seqlen = planned_seqlen(std::max(rows.queries[s].count, rows.keys[s].count));
        if (!launches.empty()) {
            AttentionLaunch& last = launches.back();
            const std::int64_t max_seqlen = std::max(last.max_seqlen, seqlen);
            if (last.count < sequences_per_launch(max_seqlen)) {
                last = {last.first, last.count + 1, sequences_per_launch(max_seqlen), max_seqlen};
                continue;
            }
        }
        launches.push_back({static_cast<std::int64_t>(s), 1, sequences_per_launch(seqlen), seqlen});
    }
    return launches;
}

backend::AttentionClass attention_class(backend::AttentionClass shape, AttentionImplementation implementation,
                                        std::int64_t max_seqlen) {
    shape.causal = is_causal(implementation);
    shape.padded = is_padded(implementation);
    if (shape.padded) shape.value_width = shape.gradient_width = shape.kv_heads * shape.dim;
    shape.sequences = sequences_per_launch(max_seqlen);
    shape.max_seqlen = max_seqlen;
    return shape;
}

PackedAttention::PackedAttention(const AttentionTensors& t, const VarlenMask& mask,
                                 AttentionImplementation implementation, const AttentionCase& c)
    : tensors_(t),
      sequences_(static_cast<std::int64_t>(mask.cu_seqlens_q.size()) - 1),
      rows_(mask),
      implementation_(implementation),
      support_(c.support),
      shape_{.backward = t.backward(),
             .heads = t.lse.columns(),
             .kv_heads = t.k.columns() / c.dim,
             .dim = c.dim,
             .value_width = t.values.columns(),
             .gradient_width = t.backward() ? t.dvalues.columns() : 0},
      launches_(attention_launches(rows_)) {
    // On the meta backend there may be longer sequences than the fused operation is used for, see
    // widest_case().
    for (AttentionLaunch& launch : launches_)
        launch.max_seqlen = std::min(launch.max_seqlen, max_planned_seqlen(c));
}

bool PackedAttention::prepare(backend::FusedAttention& device) const {
    return std::all_of(launches_.begin(), launches_.end(),
                       [&](const AttentionLaunch& launch) { return device.prepare(class_of(launch)); });
}

void PackedAttention::allocate(backend::Backend& b, backend::Arena& scratch) {
    std::size_t bytes = 0;
    std::int64_t max_rows = 0;
    std::vector<std::int32_t> words;
    for (const AttentionLaunch& launch : launches_) {
        append_lists(launch, words);
        bytes = std::max(bytes, backend::attention_workspace(class_of(launch), support_));
        max_rows = std::max(max_rows, launch.sequences * launch.max_seqlen);
    }
    lists_ =
        b.computes() ? backend::to_device(b, words, scratch) : scratch.allocate(DType::i32, {max_words()});
    workspace_ = scratch.allocate(DType::u8, {static_cast<std::int64_t>(bytes)});
    if (is_padded(implementation_)) padding_.emplace(tensors_, shape_.dim, max_rows, scratch);
}

/// Assumes a launch for every sequence, because another micro-batch with no more sequences may need that
/// many. A launch of the shortest sequences has the longest lists.
std::int64_t PackedAttention::max_words() const {
    const std::int64_t sequences_each = sequences_per_launch(planned_seqlen(1));
    if (!is_padded(implementation_))
        return sequences_ * (offset_words(sequences_each) + length_words(sequences_each));
    return sequences_ * (length_words(sequences_each) + padded(2)) + tensors_.q.dim(0) + tensors_.k.dim(0);
}

void PackedAttention::append_lists(const AttentionLaunch& launch, std::vector<std::int32_t>& words) const {
    using Rows = SequenceRows::Rows;
    const auto of = [&](const std::vector<Rows>& rows, std::int64_t i) {
        return rows[static_cast<std::size_t>(launch.first + i)];
    };
    const auto end_list = [&] {
        words.resize(static_cast<std::size_t>(padded(static_cast<std::int64_t>(words.size()))));
    };
    const auto offsets = [&](const std::vector<Rows>& rows, std::int64_t width) {
        for (std::int64_t i = 0; i <= launch.sequences; ++i) {
            const std::int64_t begin =
                i < launch.count ? of(rows, i).begin : of(rows, launch.count - 1).end();
            const auto two = std::bit_cast<std::array<std::int32_t, 2>>(begin * width);
            words.insert(words.end(), two.begin(), two.end());
        }
        end_list();
    };
    // Where a launch has fewer sequences than its plan, the others are passed as empty, as NVIDIA's
    // frameworks do. Padded ones have memory and are passed as one row of zeros.
    const auto lengths = [&](const std::vector<Rows>& rows) {
        for (std::int64_t i = 0; i < launch.sequences; ++i)
            words.push_back(i < launch.count ? of(rows, i).count : is_padded(implementation_));
        end_list();
    };
    const auto row_numbers = [&](const std::vector<Rows>& rows) {
        for (std::int64_t i = 0; i < launch.count; ++i)
            for (std::int64_t row = 0; row < of(rows, i).count; ++row)
                words.push_back(static_cast<std::int32_t>(i * launch.max_seqlen + row));
        end_list();
    };
    if (!is_padded(implementation_)) {
        offsets(rows_.queries, shape_.heads * shape_.dim);
        offsets(rows_.keys, shape_.kv_heads * shape_.dim);
        offsets(rows_.keys, tensors_.values.columns());
        offsets(rows_.queries, shape_.heads);
        offsets(rows_.keys, tensors_.dvalues.columns());
    }
    lengths(rows_.queries);
    lengths(rows_.keys);
    if (is_padded(implementation_)) {
        row_numbers(rows_.queries);
        row_numbers(rows_.keys);
    }
}

backend::AttentionArrays PackedAttention::packed_arrays() const {
    backend::AttentionArrays arrays{};
    const auto set = [&](AttentionArray which, const Tensor& tensor) {
        backend::of(arrays, which) = tensor.data;
    };
    // The values of a token are the last columns of its row.
    const auto set_last = [&](AttentionArray which, const Tensor& tensor) {
        const std::int64_t before = tensor.columns() - shape_.kv_heads * shape_.dim;
        backend::of(arrays, which) = static_cast<std::byte*>(tensor.data) +
                                     before * static_cast<std::int64_t>(maestro::size_of(tensor.dtype));
    };
    set(AttentionArray::q, tensors_.q);
    set(AttentionArray::k, tensors_.k);
    set_last(AttentionArray::values, tensors_.values);
    set(AttentionArray::out, tensors_.out);
    set(AttentionArray::lse, tensors_.lse);
    if (tensors_.backward()) {
        set(AttentionArray::dout, tensors_.dout);
        set(AttentionArray::dq, tensors_.dq);
        set(AttentionArray::dk, tensors_.dk);
        set_last(AttentionArray::dvalues, tensors_.dvalues);
    }
    return arrays;
}

void PackedAttention::clear_gaps([[maybe_unused]] Stream stream) const {
    if constexpr (backend::kCuda) {
        if (!rows_.gaps) return;
        if (!tensors_.backward()) {
            kernels::zero(stream, tensors_.out);
            kernels::fill(stream, tensors_.lse, -std::numeric_limits<double>::infinity());
            return;
        }
        for (const Tensor* gradient : {&tensors_.dq, &tensors_.dk, &tensors_.dvalues})
            kernels::zero(stream, *gradient);
    }
}

PaddedRows PackedAttention::padded_rows(const std::vector<SequenceRows::Rows>& rows,
                                        const AttentionLaunch& launch, std::int64_t& next) const {
    PaddedRows padded_rows{.first = rows[static_cast<std::size_t>(launch.first)].begin,
                           .last = rows[static_cast<std::size_t>(launch.first + launch.count - 1)].end(),
                           .row_numbers = {}};
    const std::int64_t count = padded_rows.last - padded_rows.first;
    padded_rows.row_numbers = lists_.slice(next, next + count);
    next += padded(count);
    return padded_rows;
}

void PackedAttention::run(Stream stream, backend::FusedAttention& device) const {
    clear_gaps(stream);
    backend::AttentionArrays arrays = packed_arrays();
    std::int64_t next = 0;
    const auto set_list = [&](AttentionArray which, std::int64_t words) {
        backend::of(arrays, which) = lists_.as<std::int32_t>() + next;
        next += padded(words);
    };
    for (const AttentionLaunch& launch : launches_) {
        const backend::AttentionClass c = class_of(launch);
        if (!c.padded)
            for (const AttentionArray which : kOffsets) set_list(which, 2 * (launch.sequences + 1));
        for (const AttentionArray which : kLengths) set_list(which, launch.sequences);
        if (!c.padded) {
            device.run(c, arrays, workspace_.data);
            continue;
        }
        const PaddedRows queries = padded_rows(rows_.queries, launch, next),
                         keys = padded_rows(rows_.keys, launch, next);
        padding_->copy_inputs(stream, c, queries, keys, arrays);
        device.run(c, arrays, workspace_.data);
        padding_->copy_results(stream, c, queries, keys);
    }
}

}  // namespace maestro::ops
