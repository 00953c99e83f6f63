// Copies of packed sequences, each padded with zeros to the same number of rows, for attention by plans that
// take no offsets.
#pragma once

#include <vector>

#include "backend/arena.hpp"
#include "backend/fused_attention.hpp"
#include "base/stream.hpp"
#include "ops/attention/attention_tensors.hpp"

namespace maestro::ops {

/// Rows [first, last) of a packed tensor, and which rows they are of a padded one (i32).
struct PaddedRows {
    std::int64_t first = 0, last = 0;
    Tensor places;
};

/// Of backward: nothing else is padded.
class AttentionPadding {
public:
    /// Takes scratch for launches of at most `rows` rows, padding included.
    AttentionPadding(const AttentionTensors& t, std::int64_t dim, std::int64_t rows, backend::Arena& scratch);
    /// Queues up the copies that a plan of `c` is to read, and says where they and its results lie.
    void fill(Stream stream, const backend::AttentionClass& c, const PaddedRows& queries,
              const PaddedRows& keys, backend::AttentionArrays& arrays) const;
    /// Queues up the copies of its results to where they belong.
    void take(Stream stream, const backend::AttentionClass& c, const PaddedRows& queries,
              const PaddedRows& keys) const;

private:
    struct Copy {
        backend::AttentionArray which;
        Tensor packed, padded;  ///< packed: in the last columns
        bool of_keys;
    };
    static void copy_rows(Stream stream, const Copy& copy, const PaddedRows& rows, bool to_padded);
    /// Of a launch of so many rows.
    std::vector<Copy> inputs(std::int64_t rows) const;
    std::vector<Copy> results(std::int64_t rows) const;

    AttentionTensors tensors_;
    std::int64_t query_width_, key_width_;
    Tensor inputs_, results_, statistics_;
};

}  // namespace maestro::ops
