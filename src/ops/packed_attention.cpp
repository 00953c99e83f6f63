#include "ops/packed_attention.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>

#include "backend/host_access.hpp"

namespace maestro::ops {

namespace {

using backend::AttentionArray;

constexpr std::int64_t kRows = 2048;  ///< of a launch, if its sequences are no longer
std::int64_t room_of(std::int64_t longest) {
    return std::max<std::int64_t>(kRows / longest, 1);
}

/// The lists of a launch: offsets, two words each, then lengths.
constexpr AttentionArray kOffsets[] = {AttentionArray::q_offsets, AttentionArray::k_offsets,
                                       AttentionArray::value_offsets, AttentionArray::lse_offsets,
                                       AttentionArray::dvalue_offsets};
constexpr AttentionArray kLengths[] = {AttentionArray::q_lengths, AttentionArray::k_lengths};

/// Of a list, whose end is the beginning of the next: graphs take addresses of 16 bytes.
std::int64_t padded(std::int64_t words) {
    return (words + 3) / 4 * 4;
}
std::int64_t words_of(std::int64_t sequences) {
    return static_cast<std::int64_t>(std::size(kOffsets)) * padded(2 * (sequences + 1)) +
           static_cast<std::int64_t>(std::size(kLengths)) * padded(sequences);
}

/// No launches of so many sequences have longer lists: each begins with a sequence of its own.
std::int64_t most_words(const Visible& v) {
    return (static_cast<std::int64_t>(v.queries.size()) - 1) * words_of(room_of(planned_rows(1)));
}

}  // namespace

std::vector<AttentionLaunch> attention_launches(const Visible& v) {
    std::vector<AttentionLaunch> launches;
    for (std::size_t s = 1; s < v.queries.size(); ++s) {
        const std::int64_t rows = std::max(v.queries[s] - v.queries[s - 1], v.keys[s] - v.keys[s - 1]);
        const auto sequence = static_cast<std::int64_t>(s) - 1;
        if (rows == 0) continue;
        const std::int64_t own = planned_rows(rows);
        if (!launches.empty()) {
            AttentionLaunch& last = launches.back();
            const std::int64_t longest = std::max(last.longest, own), count = sequence - last.first + 1;
            if (count <= room_of(longest)) {
                last = {last.first, count, room_of(longest), longest};
                continue;
            }
        }
        launches.push_back({sequence, 1, room_of(own), own});
    }
    return launches;
}

PackedAttention::PackedAttention(backend::Backend& b, const AttentionTensors& t, const Visible& visible,
                                 bool causal, const AttentionCase& c, backend::Arena& scratch)
    : tensors_(t),
      causal_(causal),
      heads_(t.lse.columns()),
      key_heads_(0),
      dim_(t.q.columns() / heads_),
      launches_(attention_launches(visible)) {
    key_heads_ = t.k.columns() / dim_;
    std::size_t bytes = 0;
    std::vector<std::int32_t> words;
    for (AttentionLaunch& launch : launches_) {
        list(launch, visible, words);
        launch.longest = std::min(launch.longest, most_planned_rows(c));  // on paper there may be longer ones
        bytes = std::max(bytes, backend::attention_workspace(class_of(launch), c.architecture));
    }
    // On paper as if every sequence were a launch: a micro-batch of no more may be dealt otherwise.
    lists_ = b.computes() ? backend::given(b, words, scratch)
                          : scratch.allocate(DType::i32, {most_words(visible)});
    workspace_ = scratch.allocate(DType::u8, {static_cast<std::int64_t>(bytes)});
}

backend::AttentionClass PackedAttention::class_of(const AttentionLaunch& launch) const {
    const bool backward = tensors_.backward();
    return {.backward = backward,
            .causal = causal_,
            .heads = heads_,
            .key_heads = key_heads_,
            .dim = dim_,
            .sequences = launch.sequences,
            .longest = launch.longest,
            .value_width = tensors_.values.columns(),
            .gradient_width = backward ? tensors_.dvalues.columns() : 0};
}

void PackedAttention::list(const AttentionLaunch& launch, const Visible& v,
                           std::vector<std::int32_t>& words) const {
    const auto bound = [&](const std::vector<std::int32_t>& rows, std::int64_t i) {
        return std::int64_t{rows[static_cast<std::size_t>(launch.first + std::min(i, launch.count))]};
    };
    const auto end_list = [&] {
        words.resize(static_cast<std::size_t>(padded(static_cast<std::int64_t>(words.size()))));
    };
    const auto offsets = [&](const std::vector<std::int32_t>& rows, std::int64_t width) {
        for (std::int64_t i = 0; i <= launch.sequences; ++i) {
            const auto two = std::bit_cast<std::array<std::int32_t, 2>>(bound(rows, i) * width);
            words.insert(words.end(), two.begin(), two.end());
        }
        end_list();
    };
    const auto lengths = [&](const std::vector<std::int32_t>& rows) {
        for (std::int64_t i = 0; i < launch.sequences; ++i)
            words.push_back(static_cast<std::int32_t>(bound(rows, i + 1) - bound(rows, i)));
        end_list();
    };
    offsets(v.queries, heads_ * dim_);
    offsets(v.keys, key_heads_ * dim_);
    offsets(v.keys, tensors_.values.columns());
    offsets(v.queries, heads_);
    offsets(v.keys, tensors_.dvalues.columns());
    lengths(v.queries);
    lengths(v.keys);
}

void PackedAttention::run(backend::FusedAttention& device) const {
    backend::AttentionArrays arrays{};
    const auto set = [&](AttentionArray which, const Tensor& tensor) {
        backend::of(arrays, which) = tensor.data;
    };
    /// The last columns of a tensor's rows: the values of a token among its queries and keys.
    const auto set_last = [&](AttentionArray which, const Tensor& tensor) {
        const std::int64_t before = tensor.columns() - key_heads_ * dim_;
        backend::of(arrays, which) =
            static_cast<std::byte*>(tensor.data) + before * static_cast<std::int64_t>(size_of(tensor.dtype));
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
    std::int32_t* next = lists_.as<std::int32_t>();
    for (const AttentionLaunch& launch : launches_) {
        for (const AttentionArray which : kOffsets) {
            backend::of(arrays, which) = next;
            next += padded(2 * (launch.sequences + 1));
        }
        for (const AttentionArray which : kLengths) {
            backend::of(arrays, which) = next;
            next += padded(launch.sequences);
        }
        device.run(class_of(launch), arrays, workspace_.data);
    }
}

}  // namespace maestro::ops
