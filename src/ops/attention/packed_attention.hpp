// Attention over packed sequences by a device's fused operation. A plan of the library has a fixed number of
// sequences and a fixed maximum length, so a micro-batch is divided into launches of few such classes, each
// of which takes as many consecutive sequences as its class has room for.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "ops/attention/implementation.hpp"
#include "ops/attention/padding.hpp"
#include "ops/attention/upload.hpp"

namespace maestro::ops {

/// The queries of each sequence that attend to keys, and the keys that the last of them attends to. Sequences
/// without any are left out.
struct SequenceRows {
    struct Rows {
        std::int32_t begin = 0, count = 0;
        std::int32_t end() const { return begin + count; }
        bool operator==(const Rows&) const = default;
    };
    explicit SequenceRows(const VarlenMask& mask);
    std::vector<Rows> queries, keys;  ///< by sequence
    bool gaps = false;                ///< whether other queries or keys lie before, between or behind them
};

/// What a plan has room for: so many sequences of up to `max_seqlen` rows each.
struct PlanSize {
    std::int64_t sequences = 0, max_seqlen = 0;
    std::int64_t rows() const { return sequences * max_seqlen; }
    bool operator==(const PlanSize&) const = default;
};

/// One launch: the sequences [first, first + count).
struct AttentionLaunch {
    std::int64_t first = 0, count = 0;
    PlanSize plan;
    bool operator==(const AttentionLaunch&) const = default;
};

/// Returns launches that cover all sequences in their order, for a rank with so many query heads. Lengths are
/// rounded up to powers of two, at least 128. A launch has room for 2048 rows, or for one longer sequence.
/// With fewer than 32 heads that would not occupy a GPU: a launch takes further sequences, by a plan for a
/// power of two of them, up to 2048 x 32 / heads rows, as long as at least a quarter of the plan's rows are
/// queries. (Sequences of the same rounded length fill half of a plan for a power of two of them.)
std::vector<AttentionLaunch> attention_launches(const SequenceRows& rows, std::int64_t heads);

/// Returns the plans that these launches may have for sequences of `max_seqlen` rows, rounded up as above,
/// in micro-batches of up to so many sequences and queries. The last of several may be for fewer sequences
/// than a power of two, where there are not enough queries for it.
std::vector<PlanSize> plan_sizes(std::int64_t max_seqlen, std::int64_t heads, std::int64_t sequences,
                                 std::int64_t queries);

/// Returns the class of launches by plans of this size. `shape` gives everything but the sequences and
/// max_seqlen, for packed tensors.
backend::AttentionClass attention_class(backend::AttentionClass shape, AttentionImplementation implementation,
                                        PlanSize size);

/// Scratch memory of a call.
struct PackedScratch {
    Tensor workspace;
    std::optional<AttentionPadding> padding;
};

class PackedAttention {
public:
    /// `implementation` is one of the fused ones.
    PackedAttention(const AttentionShape& shape, const AttentionSizes& sizes, const VarlenMask& mask,
                    AttentionImplementation implementation, const backend::AttentionSupport& support);
    /// Lets allocate() suffice for any micro-batch of up to so many sequences, of no more queries, and with
    /// no longer sequence than `max_seqlen` rows.
    void assume_any_lengths(std::int64_t sequences, std::int64_t max_seqlen);
    /// Builds the plans that do not exist yet. Returns false where the device has none for one of the
    /// launches.
    bool prepare(backend::FusedAttention& device) const;
    /// Copies the lists of all launches to the device by one call of `upload`.
    void upload_lists(const Upload& upload);
    /// Allocates the scratch memory of a call, which must remain allocated until run().
    PackedScratch allocate(const AttentionTensors& t, backend::Arena& scratch) const;
    /// Runs all launches on tensors of the shape, by the fused operation of `b`.
    void run(backend::Backend& b, Stream stream, const AttentionTensors& t,
             const PackedScratch& scratch) const;

private:
    backend::AttentionClass class_of(const AttentionLaunch& launch) const {
        return attention_class(shape_, implementation_, launch.plan);
    }
    /// Appends the lists of a launch (offsets and lengths, or lengths and row numbers) to `words`.
    void append_lists(const AttentionLaunch& launch, std::vector<std::int32_t>& words) const;
    backend::AttentionArrays packed_arrays(const AttentionTensors& t) const;
    /// Launches what writes the results of queries that attend to no key, and of keys that no query attends
    /// to.
    void clear_gaps(Stream stream, const AttentionTensors& t) const;
    /// Returns the rows of a launch. Their row numbers begin at word `next` of the lists, which moves to the
    /// next list.
    PaddedRows padded_rows(const std::vector<SequenceRows::Rows>& rows, const AttentionLaunch& launch,
                           std::int64_t& next) const;

    SequenceRows rows_;
    AttentionImplementation implementation_;
    backend::AttentionSupport support_;
    backend::AttentionClass shape_;  ///< everything but sequences and max_seqlen
    std::int64_t queries_;
    std::vector<AttentionLaunch> launches_;
    std::vector<PlanSize> sizes_;  ///< that allocate() suffices for
    Tensor lists_;
};

}  // namespace maestro::ops
