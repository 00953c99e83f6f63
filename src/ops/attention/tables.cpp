#include "ops/attention/tables.hpp"

#include <algorithm>

#include "ops/attention/implementation.hpp"

namespace maestro::ops {

namespace {

/// Memory is planned with one micro-batch, and another one of no more rows may consist of shorter sequences,
/// or need no joining of partial results. Returns the case in which the fused operation would be used for it,
/// so that the meta backend allocates for this implementation as well.
AttentionCase widest_case(AttentionCase c) {
    c.max_seqlen = std::min(c.max_seqlen, max_planned_seqlen(c));
    c.results = c.inputs;
    c.aligned = true;
    return c;
}

}  // namespace

/// Tiles take 5 words each, and each query has a limit. A tile has the most rows, at least 32, or is the last
/// one of its sequence. Launches for n sequences have lists of up to 12 n + 31 words. n is at most 16, or
/// less than twice the number of sequences in the launch. Padded launches also have the number of each row,
/// in two lists.
///
/// Whatever the sequences, they have at least one row each. Launches for 16 sequences that are full then have
/// at most 14 words for a row. Launches for fewer have a sequence of more than 1024 / n rows, and those for
/// more have 32 rows for each of the n: that is at least one row for each word. Either may have ended a
/// launch for 16 sequences that is not full, as does the end of the micro-batch.
std::int64_t most_table_words(const MaskBounds& mask) {
    const std::int64_t rows = mask.queries + mask.keys, tiles = rows / 32 + 2 * mask.sequences;
    return std::min(14 * rows + 256, rows + std::max(5 * tiles, (12 * 16 + 31) * mask.sequences) + 4);
}

MaskTables make_mask_tables(backend::Backend& b, const AttentionTensors& t, const VarlenMask& mask,
                            std::int64_t sequences, const Upload& upload) {
    MaskTables tables{&mask, attention_shape(t), attention_sizes(t, mask), {}, {}};
    if (b.shares_memory()) return tables;
    const AttentionShape& shape = tables.shape;
    AttentionCase c{.support = b.attention_support(),
                    .inputs = shape.inputs,
                    .results = shape.results,
                    .heads = tables.sizes.heads,
                    .dim = tables.sizes.dim,
                    .max_seqlen = tables.sizes.max_seqlen,
                    .backward = shape.backward,
                    .aligned = shape.aligned,
                    .gaps = shape.gaps};
    if (!b.computes()) c = widest_case(c);
    const AttentionImplementation implementation = attention_implementation(c, mask);
    if (implementation != AttentionImplementation::kernel)
        tables.packed.emplace(shape, tables.sizes, mask, implementation, c.support);
    if (tables.packed && !b.computes()) tables.packed->assume_any_lengths(sequences, c.max_seqlen);
    if (tables.packed && b.computes() && !tables.packed->prepare(*b.fused_attention())) tables.packed.reset();
    if (tables.packed)
        tables.packed->upload_lists(upload);
    else
        tables.tiles = attention_tiles(mask, shape.inputs, shape.backward, upload);
    return tables;
}

void AttentionTables::reserve(backend::Backend& b, std::int64_t masks, const MaskBounds& bounds,
                              bool backward, backend::Arena& arena) {
    tables_.clear();
    used_ = 0;
    sequences_ = bounds.sequences;
    if (!b.shares_memory())
        memory_ = arena.allocate(DType::i32, {masks * (backward ? 2 : 1) * most_table_words(bounds)});
}

const MaskTables& AttentionTables::of(backend::Backend& b, const AttentionTensors& t,
                                      const VarlenMask& mask) {
    const AttentionShape shape = attention_shape(t);
    for (const MaskTables& each : tables_)
        if (each.mask == &mask && each.shape == shape) return each;
    tables_.push_back(make_mask_tables(b, t, mask, sequences_, [&](const std::vector<std::int32_t>& words) {
        const auto count = static_cast<std::int64_t>(words.size());
        const Tensor copy = memory_.slice(used_, used_ + count);
        used_ += (count + 3) / 4 * 4;  // the next list begins at a multiple of 16 bytes, as cuDNN requires
        if (count > 0 && b.computes()) b.upload(words.data(), copy);
        return copy;
    }));
    return tables_.back();
}

}  // namespace maestro::ops
