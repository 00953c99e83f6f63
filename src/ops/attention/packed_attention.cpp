#include "ops/attention/packed_attention.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <limits>

#include "base/narrow.hpp"
#include "kernels/elementwise.hpp"

namespace maestro::ops {

namespace {

using backend::AttentionArray;

constexpr std::int64_t kLaunchRows = 2048;  ///< rows of a launch, unless one sequence is longer
constexpr std::int64_t kLaunchHeads = 32;   ///< with fewer heads, a launch may have more rows
constexpr std::int64_t kMostRoom = 4;       ///< rows of a plan with more sequences, per query

/// Returns how many sequences of this length any launch has room for.
std::int64_t least_sequences(std::int64_t max_seqlen) {
    return std::max<std::int64_t>(kLaunchRows / max_seqlen, 1);
}

/// Returns how many sequences of this length a launch of a rank with `heads` heads may have: queries and
/// heads are as many as those of kLaunchRows rows with kLaunchHeads heads, and a plan keeps the gradients of
/// all scores.
std::int64_t most_sequences(std::int64_t max_seqlen, std::int64_t heads) {
    const std::int64_t rows =
        std::min(kLaunchRows * kLaunchHeads, backend::kMostScoreGradients / (2 * max_seqlen)) / heads;
    return std::max(least_sequences(max_seqlen),
                    static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(rows / max_seqlen))));
}

/// Returns the plan for `count` sequences of up to `max_seqlen` rows, with `queries` queries in all. Returns
/// no sequences where they do not fit one launch.
PlanSize plan_size(std::int64_t count, std::int64_t max_seqlen, std::int64_t queries, std::int64_t heads) {
    if (count <= least_sequences(max_seqlen)) return {least_sequences(max_seqlen), max_seqlen};
    const PlanSize wide{static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(count))),
                        max_seqlen};
    const bool fits =
        wide.sequences <= most_sequences(max_seqlen, heads) && wide.rows() <= kMostRoom * queries;
    return fits ? wide : PlanSize{0, max_seqlen};
}

/// Returns about how many kernels a launch has: the library's, of which it does not document the number, and
/// the 11 copies of padded tensors.
std::int64_t kernels_of(const backend::AttentionClass& c) {
    return (c.backward ? 4 : 1) + (c.padded ? 11 : 0);
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

std::vector<AttentionLaunch> attention_launches(const SequenceRows& rows, std::int64_t heads) {
    std::vector<AttentionLaunch> launches;
    std::int64_t queries = 0;  // of the last launch
    for (std::size_t s = 0; s < rows.queries.size(); ++s) {
        const std::int64_t seqlen = planned_seqlen(std::max(rows.queries[s].count, rows.keys[s].count));
        queries += rows.queries[s].count;
        if (!launches.empty()) {
            AttentionLaunch& last = launches.back();
            const PlanSize plan =
                plan_size(last.count + 1, std::max(last.plan.max_seqlen, seqlen), queries, heads);
            if (plan.sequences > 0) {
                last = {last.first, last.count + 1, plan};
                continue;
            }
        }
        queries = rows.queries[s].count;
        launches.push_back({static_cast<std::int64_t>(s), 1, {least_sequences(seqlen), seqlen}});
    }
    return launches;
}

std::vector<PlanSize> plan_sizes(std::int64_t max_seqlen, std::int64_t heads, std::int64_t sequences,
                                 std::int64_t queries) {
    std::vector<PlanSize> sizes{{least_sequences(max_seqlen), max_seqlen}};
    const std::int64_t most = most_sequences(max_seqlen, heads),
                       filled = (kMostRoom * queries + max_seqlen - 1) / max_seqlen;
    // A plan for more sequences than the last one exists for launches that have more than that one takes.
    while (sizes.back().sequences < std::min({sequences, most, filled}))
        sizes.push_back({std::min(2 * sizes.back().sequences, filled), max_seqlen});
    return sizes;
}

backend::AttentionClass attention_class(backend::AttentionClass shape, AttentionImplementation implementation,
                                        PlanSize size) {
    shape.causal = is_causal(implementation);
    shape.padded = is_padded(implementation);
    if (shape.padded) shape.value_width = shape.gradient_width = shape.kv_heads * shape.dim;
    shape.sequences = size.sequences;
    shape.max_seqlen = size.max_seqlen;
    return shape;
}

PackedAttention::PackedAttention(const AttentionShape& shape, const AttentionSizes& sizes,
                                 const VarlenMask& mask, AttentionImplementation implementation,
                                 const backend::AttentionSupport& support)
    : rows_(mask),
      implementation_(implementation),
      support_(support),
      shape_{.backward = shape.backward,
             .heads = sizes.heads,
             .kv_heads = sizes.kv_heads,
             .dim = sizes.dim,
             .value_width = shape.value_width,
             .gradient_width = shape.gradient_width},
      queries_(shape.query_rows),
      launches_(attention_launches(rows_, sizes.heads)) {
    for (const AttentionLaunch& launch : launches_) sizes_.push_back(launch.plan);
}

void PackedAttention::assume_any_lengths(std::int64_t sequences, std::int64_t max_seqlen) {
    sizes_.clear();
    for (std::int64_t rows = planned_seqlen(1); rows <= planned_seqlen(max_seqlen); rows *= 2) {
        const std::vector<PlanSize> sizes = plan_sizes(rows, shape_.heads, sequences, queries_);
        sizes_.insert(sizes_.end(), sizes.begin(), sizes.end());
    }
}

bool PackedAttention::prepare(backend::FusedAttention& device) const {
    return std::all_of(launches_.begin(), launches_.end(),
                       [&](const AttentionLaunch& launch) { return device.prepare(class_of(launch)); });
}

void PackedAttention::upload_lists(const Upload& upload) {
    std::vector<std::int32_t> words;
    for (const AttentionLaunch& launch : launches_) append_lists(launch, words);
    lists_ = upload(words);
}

PackedScratch PackedAttention::allocate(const AttentionTensors& t, backend::Arena& scratch) const {
    std::size_t bytes = 0;
    std::int64_t max_rows = 0;
    for (const PlanSize& size : sizes_) {
        bytes = std::max(
            bytes, backend::attention_workspace(attention_class(shape_, implementation_, size), support_));
        max_rows = std::max(max_rows, size.rows());
    }
    PackedScratch allocated{scratch.allocate(DType::u8, {static_cast<std::int64_t>(bytes)}), {}};
    if (is_padded(implementation_)) allocated.padding.emplace(t, shape_.dim, max_rows, scratch);
    return allocated;
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
        for (std::int64_t i = 0; i <= launch.plan.sequences; ++i) {
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
        for (std::int64_t i = 0; i < launch.plan.sequences; ++i)
            words.push_back(i < launch.count ? of(rows, i).count : is_padded(implementation_));
        end_list();
    };
    const auto row_numbers = [&](const std::vector<Rows>& rows) {
        for (std::int64_t i = 0; i < launch.count; ++i)
            for (std::int64_t row = 0; row < of(rows, i).count; ++row)
                words.push_back(narrow<std::int32_t>(i * launch.plan.max_seqlen + row, "padded rows"));
        end_list();
    };
    if (!is_padded(implementation_)) {
        offsets(rows_.queries, shape_.heads * shape_.dim);
        offsets(rows_.keys, shape_.kv_heads * shape_.dim);
        offsets(rows_.keys, shape_.value_width);
        offsets(rows_.queries, shape_.heads);
        offsets(rows_.keys, shape_.gradient_width);
    }
    lengths(rows_.queries);
    lengths(rows_.keys);
    if (is_padded(implementation_)) {
        row_numbers(rows_.queries);
        row_numbers(rows_.keys);
    }
}

backend::AttentionArrays PackedAttention::packed_arrays(const AttentionTensors& t) const {
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
    set(AttentionArray::q, t.q);
    set(AttentionArray::k, t.k);
    set_last(AttentionArray::values, t.values);
    set(AttentionArray::out, t.out);
    set(AttentionArray::lse, t.lse);
    if (t.backward()) {
        set(AttentionArray::dout, t.dout);
        set(AttentionArray::dq, t.dq);
        set(AttentionArray::dk, t.dk);
        set_last(AttentionArray::dvalues, t.dvalues);
    }
    return arrays;
}

void PackedAttention::clear_gaps([[maybe_unused]] Stream stream,
                                 [[maybe_unused]] const AttentionTensors& t) const {
    if constexpr (backend::kCuda) {
        if (!rows_.gaps) return;
        if (!t.backward()) {
            kernels::zero(stream, t.out);
            kernels::fill(stream, t.lse, -std::numeric_limits<double>::infinity());
            return;
        }
        for (const Tensor* gradient : {&t.dq, &t.dk, &t.dvalues}) kernels::zero(stream, *gradient);
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

void PackedAttention::run(backend::Backend& b, Stream stream, const AttentionTensors& t,
                          const PackedScratch& scratch) const {
    backend::FusedAttention& device = *b.fused_attention();
    clear_gaps(stream, t);
    backend::AttentionArrays arrays = packed_arrays(t);
    std::int64_t next = 0;
    const auto set_list = [&](AttentionArray which, std::int64_t words) {
        backend::of(arrays, which) = lists_.as<std::int32_t>() + next;
        next += padded(words);
    };
    for (const AttentionLaunch& launch : launches_) {
        const backend::AttentionClass c = class_of(launch);
        if (!c.padded)
            for (const AttentionArray which : kOffsets) set_list(which, 2 * (launch.plan.sequences + 1));
        for (const AttentionArray which : kLengths) set_list(which, launch.plan.sequences);
        if (!c.padded) {
            device.run(c, arrays, scratch.workspace.data);
            b.queued(kernels_of(c));
            continue;
        }
        const PaddedRows queries = padded_rows(rows_.queries, launch, next),
                         keys = padded_rows(rows_.keys, launch, next);
        scratch.padding->copy_inputs(stream, c, queries, keys, arrays);
        device.run(c, arrays, scratch.workspace.data);
        scratch.padding->copy_results(stream, c, queries, keys);
        b.queued(kernels_of(c));
    }
}

}  // namespace maestro::ops
