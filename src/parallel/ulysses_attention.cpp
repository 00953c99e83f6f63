// DeepSpeed-Ulysses: an all-to-all turns this slice's rows of all heads into all rows of some heads,
// attention runs over whole sequences without further communication, and a second all-to-all turns its result
// back.
#include <algorithm>

#include "ops/attention/attention.hpp"
#include "ops/columns.hpp"
#include "ops/rows.hpp"
#include "parallel/context_attention.hpp"

namespace maestro::parallel {

namespace {

/// The sizes of the exchange. With fewer KV heads than cp ranks, consecutive ranks receive copies of the same
/// KV head.
struct HeadExchange {
    HeadExchange(std::int64_t slice_rows, std::int64_t row_count, int cp, std::int64_t query_columns,
                 std::int64_t kv_head_count, std::int64_t dim)
        : ranks(cp),
          rows(slice_rows),
          all_rows(row_count),
          q_columns(query_columns / cp),
          kv_columns(std::max<std::int64_t>(kv_head_count / cp, 1) * dim),
          rows_by_rank(static_cast<std::size_t>(cp), rows),
          kv_heads(kv_head_count),
          head_dim(dim) {}
    /// Returns the rows for or from `rank` in a tensor that has those of all ranks one after another.
    Tensor part(const Tensor& by_rank, int rank) const {
        return by_rank.slice(rank * rows, (rank + 1) * rows);
    }
    /// Returns the first column of the KV heads of `rank`, among the columns of all KV heads.
    std::int64_t first_kv_column(int rank) const { return rank * kv_heads / ranks * head_dim; }

    int ranks;
    std::int64_t rows, all_rows;             ///< of this slice, of all slices
    std::int64_t q_columns, kv_columns;      ///< of the query heads of one rank, and of its KV heads
    std::vector<std::int64_t> rows_by_rank;  ///< this slice's rows, once for each rank
    std::int64_t kv_heads, head_dim;
};

}  // namespace

AttentionActivations ContextAttention::ulysses_allocate(const Sequences& sequences, std::int64_t heads,
                                                        std::int64_t kv_heads, backend::Arena& saved) const {
    const HeadExchange e(sequences.rows, sequences.partition.rows(), mesh_->degrees().cp, heads * head_dim_,
                         kv_heads, head_dim_);
    AttentionActivations a;
    a.q = saved.allocate(type_, {e.all_rows, e.q_columns});
    a.k = saved.allocate(type_, {e.all_rows, e.kv_columns});
    a.values = saved.allocate(type_, {e.all_rows, e.kv_columns});
    // Saved although the layer keeps its own attn_out: backward needs the outputs of these rows and heads,
    // and exchanging them again would cost another all-to-all.
    a.out = saved.allocate(type_, {e.all_rows, e.q_columns});
    a.lse = saved.allocate(statistics_, {e.all_rows, e.q_columns / head_dim_});
    return a;
}

void ContextAttention::ulysses_forward(AttentionActivations& a, const Tensor& q, const Tensor& k,
                                       const Tensor& qkv, const ContextMasks& masks, const Tensor& attn_out,
                                       backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    collective::ProcessGroup& cp = mesh_->cp();
    const HeadExchange e(q.dim(0), a.q.dim(0), cp.size(), q.columns(), k.columns() / head_dim_, head_dim_);
    const std::int64_t q_columns = e.q_columns, kv_columns = e.kv_columns;
    const Tensor& packed_rows = masks.device_packed_rows;
    // Queries, keys and values of a row lie side by side, so that one all-to-all carries all three.
    const Tensor send = scratch.allocate(type_, {e.ranks * e.rows, q_columns + 2 * kv_columns}),
                 received = scratch.allocate(type_, {e.all_rows, q_columns + 2 * kv_columns});
    for (int to = 0; to < e.ranks; ++to) {
        const Tensor part = e.part(send, to);
        const std::int64_t kv_column = e.first_kv_column(to);
        ops::copy_columns(backend_, {q, to * q_columns}, {part, 0}, q_columns);
        ops::copy_columns(backend_, {k, kv_column}, {part, q_columns}, kv_columns);
        ops::copy_columns(backend_, {qkv, qkv.columns() - k.columns() + kv_column},
                          {part, q_columns + kv_columns}, kv_columns);
    }
    cp.all_to_all(backend_, send, e.rows_by_rank, received, masks.slice_rows);
    // What arrives is ordered by slice. Attention wants the rows of a sequence together, in packed order.
    ops::copy_columns(backend_, {received, 0}, {a.q, 0, packed_rows}, q_columns);
    ops::copy_columns(backend_, {received, q_columns}, {a.k, 0, packed_rows}, kv_columns);
    ops::copy_columns(backend_, {received, q_columns + kv_columns}, {a.values, 0, packed_rows}, kv_columns);
    ops::attention(backend_, a.q, a.k, a.values, masks.mask, a.out, a.lse, scratch, &masks.tables);
    const Tensor by_slice = scratch.allocate(type_, {e.all_rows, q_columns}),
                 by_heads = scratch.allocate(type_, {e.ranks * e.rows, q_columns});
    ops::gather_rows(backend_, a.out, packed_rows, by_slice);
    cp.all_to_all(backend_, by_slice, masks.slice_rows, by_heads, e.rows_by_rank);
    for (int from = 0; from < e.ranks; ++from)
        ops::copy_columns(backend_, {e.part(by_heads, from), 0}, {attn_out, from * q_columns}, q_columns);
}

void ContextAttention::ulysses_backward(const AttentionActivations& a, const Tensor& d_attn_out,
                                        const ContextMasks& masks, const Tensor& dq, const Tensor& dk,
                                        const Tensor& dqkv, backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    collective::ProcessGroup& cp = mesh_->cp();
    const HeadExchange e(dq.dim(0), a.q.dim(0), cp.size(), dq.columns(), dk.columns() / head_dim_, head_dim_);
    const std::int64_t q_columns = e.q_columns, kv_columns = e.kv_columns;
    const Tensor& packed_rows = masks.device_packed_rows;
    const Tensor send = scratch.allocate(type_, {e.ranks * e.rows, q_columns}),
                 received = scratch.allocate(type_, {e.all_rows, q_columns}),
                 d_out = scratch.allocate(type_, {e.all_rows, q_columns});
    for (int to = 0; to < e.ranks; ++to)
        ops::copy_columns(backend_, {d_attn_out, to * q_columns}, {e.part(send, to), 0}, q_columns);
    cp.all_to_all(backend_, send, e.rows_by_rank, received, masks.slice_rows);
    ops::scatter_rows(backend_, received, packed_rows, d_out);
    // The received rows have been copied to d_out, so their memory serves for the gradient of the queries.
    const Tensor d_q = received, d_k = scratch.allocate(type_, {e.all_rows, kv_columns}),
                 d_values = scratch.allocate(type_, {e.all_rows, kv_columns});
    ops::attention_backward(backend_, d_out, a.out, a.q, a.k, a.values, a.lse, masks.mask, d_q, d_k, d_values,
                            scratch, &masks.tables);
    const Tensor by_slice = scratch.allocate(type_, {e.all_rows, q_columns + 2 * kv_columns}),
                 by_heads = scratch.allocate(type_, {e.ranks * e.rows, q_columns + 2 * kv_columns});
    ops::copy_columns(backend_, {d_q, 0, packed_rows}, {by_slice, 0}, q_columns);
    ops::copy_columns(backend_, {d_k, 0, packed_rows}, {by_slice, q_columns}, kv_columns);
    ops::copy_columns(backend_, {d_values, 0, packed_rows}, {by_slice, q_columns + kv_columns}, kv_columns);
    cp.all_to_all(backend_, by_slice, masks.slice_rows, by_heads, e.rows_by_rank);
    // Ranks that hold copies of one KV head each return the gradient from their own queries. The first of
    // them overwrites the columns and the others add to them, in the order of ranks.
    std::int64_t written_columns = 0;
    for (int from = 0; from < e.ranks; ++from) {
        const Tensor part = e.part(by_heads, from);
        const std::int64_t kv_column = e.first_kv_column(from);
        const bool accumulate = kv_column < written_columns;
        ops::copy_columns(backend_, {part, 0}, {dq, from * q_columns}, q_columns);
        ops::copy_columns(backend_, {part, q_columns}, {dk, kv_column}, kv_columns, accumulate);
        ops::copy_columns(backend_, {part, q_columns + kv_columns},
                          {dqkv, dqkv.columns() - dk.columns() + kv_column}, kv_columns, accumulate);
        written_columns = kv_column + kv_columns;
    }
}

}  // namespace maestro::parallel
