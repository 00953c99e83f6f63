// Attention over packed sequences by a device's fused operation, in launches of few shapes: each takes
// sequences that follow each other, as many as its class has room for.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "ops/attention/implementation.hpp"
#include "ops/attention/padding.hpp"

namespace maestro::ops {

/// Where each sequence that has rows begins among queries and keys, S + 1.
struct SequenceRows {
    explicit SequenceRows(const VarlenMask& mask);
    std::vector<std::int32_t> queries, keys;
};

/// Sequences [first, first + count) in a plan for `sequences` of at most `max_seqlen` rows each.
struct AttentionLaunch {
    std::int64_t first = 0, count = 0;
    std::int64_t sequences = 0, max_seqlen = 0;
    bool operator==(const AttentionLaunch&) const = default;
};

/// All sequences, in order. Lengths are rounded up to powers of two from 128, and a launch has room for 2048
/// rows, or for one sequence that is longer.
std::vector<AttentionLaunch> attention_launches(const SequenceRows& rows);

/// Of launches whose max_seqlen sequence has so many rows, as planned. `shape`: all but sequences and
/// max_seqlen; its rows are those of packed tensors.
backend::AttentionClass attention_class(backend::AttentionClass shape, AttentionImplementation form,
                                        std::int64_t max_seqlen);

class PackedAttention {
public:
    /// `form` is not the kernel's.
    PackedAttention(const AttentionTensors& t, const VarlenMask& mask, AttentionImplementation form,
                    const AttentionCase& c);
    /// Builds the plans that are not built yet. False where the device has none for one of the launches.
    bool prepare(backend::FusedAttention& device) const;
    /// Takes scratch and hands over lengths and offsets or places.
    void take(backend::Backend& b, backend::Arena& scratch);
    void run(Stream stream, backend::FusedAttention& device) const;

private:
    backend::AttentionClass class_of(const AttentionLaunch& launch) const {
        return attention_class(shape_, form_, launch.max_seqlen);
    }
    /// Appends the launch's lists to `words`.
    void list(const AttentionLaunch& launch, std::vector<std::int32_t>& words) const;
    /// Words of the lists, whatever sequences of no more rows are dealt.
    std::int64_t most_words() const;
    backend::AttentionArrays packed_arrays() const;
    PaddedRows padded_rows(const std::vector<std::int32_t>& rows, const AttentionLaunch& launch,
                           std::int64_t& next) const;

    AttentionTensors tensors_;
    SequenceRows rows_;
    AttentionImplementation form_;
    int architecture_;
    backend::AttentionClass shape_;  ///< without sequences and max_seqlen
    std::vector<AttentionLaunch> launches_;
    Tensor lists_, workspace_;
    std::optional<AttentionPadding> padding_;
};

}  // namespace maestro::ops
