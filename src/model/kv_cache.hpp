// The keys and values of all rows that layers of a language model have seen of one sequence. With them, a
// model computes the next row alone, instead of the whole sequence again for every token.
//
// Shape letters: K KV heads of this tp rank, D channels of a head, n rows.
#pragma once

#include <cstdint>

#include "backend/arena.hpp"
#include "ops/attention/attention.hpp"
#include "ops/attention/tables.hpp"

namespace maestro::model {

class KvCache {
public:
    /// Room for `capacity` rows of `layers` layers, of K D = `width`, in `arena`, which outlives the cache.
    KvCache(backend::Backend& backend, std::int64_t layers, std::int64_t width, DType type,
            std::int64_t capacity, backend::Arena& arena);

    std::int64_t length() const { return length_; }  ///< rows that every layer has
    std::int64_t capacity() const { return capacity_; }
    void clear() { length_ = 0; }
    /// Copies the keys k[n, K D] and the values, the last K D columns of qkv[n, any], behind the rows of the
    /// layer. They count once every layer has them: then the caller calls add_rows(n).
    void write(std::int64_t layer, const Tensor& k, const Tensor& qkv);
    void add_rows(std::int64_t rows);

    /// To be called before attend(), once for all layers: one more row will be written.
    void begin_row(backend::Arena& scratch);
    /// out[1, H D] = attention of q[1, H D] over all rows of the layer and the one that was just written.
    /// lse[1, H] is overwritten.
    void attend(std::int64_t layer, const Tensor& q, const Tensor& out, const Tensor& lse,
                backend::Arena& scratch);

private:
    backend::Backend& backend_;
    std::int64_t capacity_, length_ = 0;
    Tensor keys_, values_;  ///< [layers capacity, K D]
    ops::VarlenMask mask_;  ///< of the row that begin_row() has announced
    ops::AttentionTables tables_;
};

}  // namespace maestro::model
