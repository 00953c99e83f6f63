// Copies of packed sequences in which each is padded with zeros to the same number of rows, for plans of the
// fused operation that accept no offsets.
#pragma once

#include <vector>

#include "backend/arena.hpp"
#include "backend/fused_attention.hpp"
#include "base/stream.hpp"
#include "ops/attention/attention_tensors.hpp"

namespace maestro::ops {

/// Rows [first, last) of a packed tensor, and their row numbers (i32) in a padded one.
struct PaddedRows {
    std::int64_t first = 0, last = 0;
    Tensor row_numbers;
};

/// The padded copies of the backward pass, which is the only one that needs them.
class AttentionPadding {
public:
    /// Allocates copies for launches of at most `rows` rows, padding included. The scratch memory must remain
    /// allocated for the lifetime of this object.
    AttentionPadding(const AttentionTensors& t, std::int64_t dim, std::int64_t rows, backend::Arena& scratch);
    /// Launches the copies of the inputs for a plan of class `c`, and sets the arrays of the plan to them and
    /// to the padded results.
    void copy_inputs(Stream stream, const backend::AttentionClass& c, const PaddedRows& queries,
                     const PaddedRows& keys, backend::AttentionArrays& arrays) const;
    /// Launches the copies of the padded results to the packed tensors.
    void copy_results(Stream stream, const backend::AttentionClass& c, const PaddedRows& queries,
                      const PaddedRows& keys) const;

private:
    struct Copy {
        backend::AttentionArray which;
        Tensor packed, padded;  ///< the data are the last columns of `packed`
        bool of_keys;           ///< whether its rows are those of keys, or of queries
    };
    static void copy_rows(Stream stream, const Copy& copy, const PaddedRows& rows, bool to_padded);
    /// Return the copies for a launch of `rows` rows, padding included.
    std::vector<Copy> inputs(std::int64_t rows) const;
    std::vector<Copy> results(std::int64_t rows) const;

    AttentionTensors tensors_;
    std::int64_t query_width_, key_width_;
    Tensor inputs_, results_, statistics_;
};

}  // namespace maestro::ops
