#include "parallel/context_attention.hpp"

#include <algorithm>

#include "ops/attention/attention.hpp"
#include "ops/columns.hpp"
#include "ops/dispatch.hpp"
#include "ops/elementwise.hpp"
#include "ops/rows.hpp"

namespace maestro::parallel {

ContextAttention::ContextAttention(backend::Backend& backend, const Mesh& mesh, DType type,
                                   std::int64_t head_dim)
    : backend_(backend), mesh_(&mesh), type_(type), statistics_(ops::accumulate_type(type)), dim_(head_dim) {}

namespace {

/// The sizes of an all-to-all between the rows of a slice with all heads, and all rows with some of the
/// heads. Where there are fewer key heads than ranks, ranks that follow each other get the same one.
struct HeadExchange {
    HeadExchange(const Sequences& sequences, int count, std::int64_t query_columns,
                 std::int64_t kv_head_count, std::int64_t dim)
        : ranks(count),
          rows(sequences.rows),
          all(sequences.partition.rows()),
          q_columns(query_columns / count),
          kv_columns(std::max<std::int64_t>(kv_head_count / count, 1) * dim),
          rows_each(static_cast<std::size_t>(count), rows),
          kv_heads(kv_head_count),
          head_dim(dim) {}
    /// What rank `rank` sends or gets, of a tensor that has those of all ranks one below the other.
    Tensor part(const Tensor& by_rank, int rank) const {
        return by_rank.slice(rank * rows, (rank + 1) * rows);
    }
    /// The first column of the rank's key heads among those of all.
    std::int64_t first_key_column(int rank) const { return rank * kv_heads / ranks * head_dim; }

    int ranks;
    std::int64_t rows, all;               ///< of this slice, of all slices
    std::int64_t q_columns, kv_columns;   ///< of one rank's query heads, and of its key heads
    std::vector<std::int64_t> rows_each;  ///< of the parts of this slice for each rank
    std::int64_t kv_heads, head_dim;
};

}  // namespace

AttentionActivations ContextAttention::allocate(const Sequences& sequences, std::int64_t heads,
                                                std::int64_t kv_heads, backend::Arena& saved) const {
    AttentionActivations a;
    if (!uses_ulysses()) {
        const std::int64_t rows = sequences.rows;
        a.q = saved.allocate(type_, {rows, heads * dim_});
        a.k = saved.allocate(type_, {rows, kv_heads * dim_});
        a.lse = saved.allocate(statistics_, {rows, heads});
        return a;
    }
    const HeadExchange e(sequences, mesh_->degrees().cp, heads * dim_, kv_heads, dim_);
    a.q = saved.allocate(type_, {e.all, e.q_columns});
    a.k = saved.allocate(type_, {e.all, e.kv_columns});
    a.values = saved.allocate(type_, {e.all, e.kv_columns});
    a.out = saved.allocate(type_, {e.all, e.q_columns});
    a.lse = saved.allocate(statistics_, {e.all, e.q_columns / dim_});
    return a;
}

void ContextAttention::prepare(std::span<const std::int64_t> rows, AttentionMask mask, std::int64_t heads,
                               std::int64_t kv_heads, bool backward) const {
    const int cp = mesh_->degrees().cp;
    const bool causal = mask == AttentionMask::causal;
    if (cp > 1 && !uses_ulysses() && causal) return;  // a ring cuts every sequence
    backend::AttentionClass shape{.backward = backward, .causal = causal, .dim = dim_};
    if (uses_ulysses()) {
        shape.heads = heads / cp;
        shape.kv_heads = std::max<std::int64_t>(kv_heads / cp, 1);
        shape.value_width = shape.kv_heads * dim_;
    } else {
        shape.heads = heads;
        shape.kv_heads = kv_heads;
        shape.value_width = (heads + 2 * kv_heads) * dim_;
    }
    shape.gradient_width = backward ? shape.value_width : 0;
    ops::prepare_attention(backend_, type_, shape, rows);
}

namespace {

/// The slice whose keys are on rank `own` after that many shifts around the ring.
int slice_after(int own, int shifts, int slices) {
    return (own + slices - shifts) % slices;
}

/// Two buffers of [2 n, columns], keys above values, for n rows at most: one is read while the other is
/// filled. On the meta backend n is as if all rows travelled, because another micro-batch of no more rows may
/// be cut otherwise.
struct KvRingBuffer {
    KvRingBuffer(const backend::Backend& backend, const Sequences& sequences, DType type,
                 std::int64_t columns, backend::Arena& scratch)
        : rows(sequences.ring_row_counts) {
        std::int64_t most = 2 * *std::max_element(rows.begin(), rows.end());
        if (!backend.computes()) most = std::max(most, 2 * sequences.rows);
        buffer[0] = scratch.allocate(type, {most, columns});
        buffer[1] = scratch.allocate(type, {most, columns});
    }
    Tensor at(int shifts, int slice) const { return buffer[shifts % 2].slice(0, 2 * rows[slice]); }
    std::vector<std::int64_t> rows;  ///< by slice
    Tensor buffer[2];
};

/// Scratch of a ring's forward. Partial results are joined in the accumulation type, so that the result is
/// rounded once, as without a ring.
struct RingForward {
    RingForward(const backend::Backend& backend, const AttentionActivations& a, const Sequences& sequences,
                const Tensor& attn_out, DType type, DType statistics, backend::Arena& scratch)
        : kv(backend, sequences, type, a.k.columns(), scratch),
          out(type == statistics ? attn_out
                                 : scratch.allocate(statistics, {attn_out.dim(0), attn_out.columns()})),
          part(scratch.allocate(statistics, {attn_out.dim(0), attn_out.columns()})),
          part_lse(scratch.allocate(statistics, {a.lse.dim(0), a.lse.columns()})) {}
    KvRingBuffer kv;
    Tensor out, part, part_lse;
};

/// Scratch of its backward. The sums of the gradients of keys and values travel one shift behind the keys, in
/// the accumulation type.
struct RingBackward {
    RingBackward(const backend::Backend& backend, const Sequences& sequences, const Tensor& dq,
                 const Tensor& dk, DType type, DType statistics, backend::Arena& scratch)
        : kv(backend, sequences, type, dk.columns(), scratch),
          sums(backend, sequences, statistics, dk.columns(), scratch),
          q_sum(scratch.allocate(statistics, {dq.dim(0), dq.columns()})),
          q_part(scratch.allocate(statistics, {dq.dim(0), dq.columns()})),
          k_sum(scratch.allocate(statistics, {dk.dim(0), dk.columns()})),
          v_sum(scratch.allocate(statistics, {dk.dim(0), dk.columns()})),
          kv_part(scratch.allocate(statistics, {sums.buffer[0].dim(0), dk.columns()})) {}
    KvRingBuffer kv, sums;
    Tensor q_sum, q_part, k_sum, v_sum, kv_part;
};

}  // namespace

void ContextAttention::forward(AttentionActivations& a, const Tensor& q, const Tensor& k, const Tensor& qkv,
                               const Sequences& sequences, const Tensor& attn_out,
                               backend::Arena& scratch) const {
    if (!uses_ulysses()) {
        a.values = qkv;
        if (sequences.has_ring_rows()) return ring_forward(a, sequences, attn_out, scratch);
        const backend::ArenaScope scope(scratch);
        if (counts_ring()) RingForward(backend_, a, sequences, attn_out, type_, statistics_, scratch);
        ops::attention(backend_, a.q, a.k, qkv, sequences.mask, attn_out, a.lse, scratch);
        return;
    }
    const backend::ArenaScope scope(scratch);
    collective::ProcessGroup& group = mesh_->cp();
    const HeadExchange e(sequences, group.size(), q.columns(), k.columns() / dim_, dim_);
    const std::int64_t q_columns = e.q_columns, kv_columns = e.kv_columns;
    const Tensor send = scratch.allocate(type_, {e.ranks * e.rows, q_columns + 2 * kv_columns}),
                 received = scratch.allocate(type_, {e.all, q_columns + 2 * kv_columns});
    for (int to = 0; to < e.ranks; ++to) {
        const Tensor part = e.part(send, to);
        const std::int64_t key = e.first_key_column(to);
        ops::copy_columns(backend_, {q, to * q_columns}, {part, 0}, q_columns);
        ops::copy_columns(backend_, {k, key}, {part, q_columns}, kv_columns);
        ops::copy_columns(backend_, {qkv, qkv.columns() - k.columns() + key}, {part, q_columns + kv_columns},
                          kv_columns);
    }
    group.all_to_all(backend_, send, e.rows_each, received, sequences.slice_rows);
    ops::copy_columns(backend_, {received, 0}, {a.q, 0, sequences.device_packed_rows}, q_columns);
    ops::copy_columns(backend_, {received, q_columns}, {a.k, 0, sequences.device_packed_rows}, kv_columns);
    ops::copy_columns(backend_, {received, q_columns + kv_columns},
                      {a.values, 0, sequences.device_packed_rows}, kv_columns);
    ops::attention(backend_, a.q, a.k, a.values, sequences.mask, a.out, a.lse, scratch);
    const Tensor by_slice = scratch.allocate(type_, {e.all, q_columns}),
                 by_heads = scratch.allocate(type_, {e.ranks * e.rows, q_columns});
    ops::gather_rows(backend_, a.out, sequences.device_packed_rows, by_slice);
    group.all_to_all(backend_, by_slice, sequences.slice_rows, by_heads, e.rows_each);
    for (int from = 0; from < e.ranks; ++from)
        ops::copy_columns(backend_, {e.part(by_heads, from), 0}, {attn_out, from * q_columns}, q_columns);
}

void ContextAttention::backward(const AttentionActivations& a, const Tensor& d_attn_out,
                                const Tensor& attn_out, const Sequences& sequences, const Tensor& dq,
                                const Tensor& dk, const Tensor& dqkv, backend::Arena& scratch) const {
    if (!uses_ulysses()) {
        if (sequences.has_ring_rows())
            return ring_backward(a, d_attn_out, attn_out, sequences, dq, dk, dqkv, scratch);
        const backend::ArenaScope scope(scratch);
        if (counts_ring()) RingBackward(backend_, sequences, dq, dk, type_, statistics_, scratch);
        ops::attention_backward(backend_, d_attn_out, attn_out, a.q, a.k, a.values, a.lse, sequences.mask, dq,
                                dk, dqkv, scratch);
        return;
    }
    const backend::ArenaScope scope(scratch);
    collective::ProcessGroup& group = mesh_->cp();
    const HeadExchange e(sequences, group.size(), dq.columns(), dk.columns() / dim_, dim_);
    const std::int64_t q_columns = e.q_columns, kv_columns = e.kv_columns;
    const Tensor send = scratch.allocate(type_, {e.ranks * e.rows, q_columns}),
                 received = scratch.allocate(type_, {e.all, q_columns}),
                 d_out = scratch.allocate(type_, {e.all, q_columns});
    for (int to = 0; to < e.ranks; ++to)
        ops::copy_columns(backend_, {d_attn_out, to * q_columns}, {e.part(send, to), 0}, q_columns);
    group.all_to_all(backend_, send, e.rows_each, received, sequences.slice_rows);
    ops::scatter_rows(backend_, received, sequences.device_packed_rows, d_out);
    const Tensor d_q = received, d_k = scratch.allocate(type_, {e.all, kv_columns}),
                 d_values = scratch.allocate(type_, {e.all, kv_columns});
    ops::attention_backward(backend_, d_out, a.out, a.q, a.k, a.values, a.lse, sequences.mask, d_q, d_k,
                            d_values, scratch);
    const Tensor back = scratch.allocate(type_, {e.all, q_columns + 2 * kv_columns}),
                 mine = scratch.allocate(type_, {e.ranks * e.rows, q_columns + 2 * kv_columns});
    ops::copy_columns(backend_, {d_q, 0, sequences.device_packed_rows}, {back, 0}, q_columns);
    ops::copy_columns(backend_, {d_k, 0, sequences.device_packed_rows}, {back, q_columns}, kv_columns);
    ops::copy_columns(backend_, {d_values, 0, sequences.device_packed_rows}, {back, q_columns + kv_columns},
                      kv_columns);
    group.all_to_all(backend_, back, sequences.slice_rows, mine, e.rows_each);
    std::int64_t written = 0;  // key columns: what two ranks had the same key head of is summed
    for (int from = 0; from < e.ranks; ++from) {
        const Tensor part = e.part(mine, from);
        const std::int64_t key = e.first_key_column(from);
        const bool again = key < written;
        ops::copy_columns(backend_, {part, 0}, {dq, from * q_columns}, q_columns);
        ops::copy_columns(backend_, {part, q_columns}, {dk, key}, kv_columns, again);
        ops::copy_columns(backend_, {part, q_columns + kv_columns},
                          {dqkv, dqkv.columns() - dk.columns() + key}, kv_columns, again);
        written = key + kv_columns;
    }
}

void ContextAttention::pack_keys(const AttentionActivations& a, const Sequences& sequences,
                                 const Tensor& packed) const {
    const std::int64_t rows = packed.dim(0) / 2, columns = a.k.columns();
    ops::copy_columns(backend_, {a.k, 0, sequences.device_ring_rows}, {packed.slice(0, rows), 0}, columns);
    ops::copy_columns(backend_, {a.values, a.values.columns() - columns, sequences.device_ring_rows},
                      {packed.slice(rows, 2 * rows), 0}, columns);
}

void ContextAttention::ring_forward(const AttentionActivations& a, const Sequences& sequences,
                                    const Tensor& attn_out, backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    collective::ProcessGroup& ring = mesh_->cp();
    const int slices = ring.size(), own = ring.rank();
    const RingForward buffers(backend_, a, sequences, attn_out, type_, statistics_, scratch);
    const auto& [kv, out, part, part_lse] = buffers;
    const auto slice = [&](int shifts) { return slice_after(own, shifts, slices); };
    const auto here = [&, &kv = kv](int shifts) { return kv.at(shifts, slice(shifts)); };
    pack_keys(a, sequences, here(0));
    // The next keys travel while attention runs over those that are here.
    auto shift = ring.start_shift(backend_, here(0), here(1), 1);
    ops::attention(backend_, a.q, a.k, a.values, sequences.mask, out, a.lse, scratch);
    for (int shifts = 1; shifts < slices; ++shifts) {
        ring.wait(shift);
        if (shifts + 1 < slices) shift = ring.start_shift(backend_, here(shifts), here(shifts + 1), 1);
        const std::int64_t rows = sequences.ring_row_counts[slice(shifts)];
        if (rows == 0) continue;
        ops::attention(backend_, a.q, here(shifts).slice(0, rows), here(shifts).slice(rows, 2 * rows),
                       sequences.ring_masks[slice(shifts)], part, part_lse, scratch);
        ops::join_attention(backend_, part, part_lse, out, a.lse);
    }
    if (out.data != attn_out.data) ops::convert(backend_, out, attn_out);
}

void ContextAttention::ring_backward(const AttentionActivations& a, const Tensor& d_attn_out,
                                     const Tensor& attn_out, const Sequences& sequences, const Tensor& dq,
                                     const Tensor& dk, const Tensor& dqkv, backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    collective::ProcessGroup& ring = mesh_->cp();
    const int slices = ring.size(), own = ring.rank();
    const std::int64_t columns = a.k.columns();
    const RingBackward buffers(backend_, sequences, dq, dk, type_, statistics_, scratch);
    const auto& [kv, sums, q_sum, q_part, k_sum, v_sum, kv_part] = buffers;
    const auto slice = [&](int shifts) { return slice_after(own, shifts, slices); };
    const auto here = [&, &kv = kv](int shifts) { return kv.at(shifts, slice(shifts)); };
    pack_keys(a, sequences, here(0));
    auto shift = ring.start_shift(backend_, here(0), here(1), 1);
    ops::attention_backward(backend_, d_attn_out, attn_out, a.q, a.k, a.values, a.lse, sequences.mask, q_sum,
                            k_sum, v_sum, scratch);
    // The sums for the slice whose keys are here come from the rank that had these keys before.
    collective::ProcessGroup::Request sum_shift = 0;
    for (int shifts = 1; shifts < slices; ++shifts) {
        ring.wait(shift);
        if (shifts + 1 < slices) shift = ring.start_shift(backend_, here(shifts), here(shifts + 1), 1);
        const std::int64_t rows = sequences.ring_row_counts[slice(shifts)];
        const Tensor part = kv_part.slice(0, 2 * rows), sum = sums.at(shifts, slice(shifts));
        if (rows > 0) {
            ops::attention_backward(backend_, d_attn_out, attn_out, a.q, here(shifts).slice(0, rows),
                                    here(shifts).slice(rows, 2 * rows), a.lse,
                                    sequences.ring_masks[slice(shifts)], q_part, part.slice(0, rows),
                                    part.slice(rows, 2 * rows), scratch);
            ops::add(backend_, q_part, q_sum);
        }
        if (shifts > 1) {
            ring.wait(sum_shift);
            if (rows > 0) ops::add(backend_, part, sum);
        } else if (rows > 0) {
            ops::convert(backend_, part, sum);
        }
        sum_shift = ring.start_shift(backend_, sum, sums.at(shifts + 1, slice(shifts + 1)), 1);
    }
    ring.wait(sum_shift);
    const Tensor home = sums.at(slices, own);  // of this slice's own keys, after a whole turn
    const std::int64_t rows = sequences.ring_row_counts[own];
    ops::copy_columns(backend_, {home.slice(0, rows), 0}, {k_sum, 0, sequences.device_ring_rows}, columns,
                      true);
    ops::copy_columns(backend_, {home.slice(rows, 2 * rows), 0}, {v_sum, 0, sequences.device_ring_rows},
                      columns, true);
    ops::convert(backend_, q_sum, dq);
    ops::convert(backend_, k_sum, dk);
    ops::copy_columns(backend_, {v_sum, 0}, {dqkv, dqkv.columns() - columns}, columns);
}

}  // namespace maestro::parallel
