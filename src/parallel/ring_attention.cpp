// Ring attention. In step s of the ring a rank holds the keys and values of the slice that is s ranks before
// its own, computes the attention of its queries to them, and joins the result to what it has so far. Only
// the rows of cut sequences travel: a query attends to nothing in another slice unless its sequence is cut.
#include <algorithm>

#include "ops/attention/attention.hpp"
#include "ops/columns.hpp"
#include "ops/elementwise.hpp"
#include "parallel/context_attention.hpp"

namespace maestro::parallel {

namespace {

/// Two buffers of [2 n, columns], n rows of keys above n rows of values: one is read while the other
/// receives. n is the largest number of rows that any slice sends. On the meta backend it is the number of
/// rows of the slice, as if all of them travelled, because another micro-batch of no more rows may be cut
/// otherwise.
struct KvRingBuffer {
    KvRingBuffer(const backend::Backend& backend, const ContextMasks& masks, std::int64_t slice_rows,
                 DType type, std::int64_t columns, backend::Arena& scratch)
        : rows(masks.ring_row_counts) {
        std::int64_t max_rows = 2 * *std::max_element(rows.begin(), rows.end());
        if (!backend.computes()) max_rows = std::max(max_rows, 2 * slice_rows);
        buffer[0] = scratch.allocate(type, {max_rows, columns});
        buffer[1] = scratch.allocate(type, {max_rows, columns});
    }
    /// Returns the buffer of ring step `step`, which holds the rows of `slice`.
    Tensor at(int step, int slice) const { return buffer[step % 2].slice(0, 2 * rows[slice]); }
    std::vector<std::int64_t> rows;  ///< by slice
    Tensor buffer[2];
};

/// The order in which slices pass a rank.
struct RingOrder {
    int rank, slices;
    /// Returns the slice whose keys and values this rank holds in ring step `step`.
    int slice(int step) const { return (rank + slices - step) % slices; }
};

/// Scratch memory of the forward pass. Partial results are joined in the accumulation type. `partial` is
/// their type: the accumulation type, so that the result is rounded once, as without a ring, or what a fused
/// operation writes.
struct RingForward {
    RingForward(const backend::Backend& backend, const AttentionActivations& a, const ContextMasks& masks,
                const Tensor& attn_out, DType type, DType statistics, DType partial, backend::Arena& scratch)
        : kv(backend, masks, a.q.dim(0), type, a.k.columns(), scratch),
          out(type == statistics ? attn_out
                                 : scratch.allocate(statistics, {attn_out.dim(0), attn_out.columns()})),
          partial_out(scratch.allocate(partial, {attn_out.dim(0), attn_out.columns()})),
          partial_lse(scratch.allocate(statistics, {a.lse.dim(0), a.lse.columns()})) {}
    KvRingBuffer kv;
    Tensor out, partial_out, partial_lse;
};

/// Scratch memory of the backward pass. The gradients of the exchanged keys and values follow them one step
/// behind, in the accumulation type: each rank adds its part. `partial` as in the forward pass.
struct RingBackward {
    RingBackward(const backend::Backend& backend, const ContextMasks& masks, const Tensor& dq,
                 const Tensor& dk, DType type, DType statistics, DType partial, backend::Arena& scratch)
        : kv(backend, masks, dq.dim(0), type, dk.columns(), scratch),
          d_kv(backend, masks, dq.dim(0), statistics, dk.columns(), scratch),
          dq_sum(scratch.allocate(statistics, {dq.dim(0), dq.columns()})),
          dq_partial(scratch.allocate(partial, {dq.dim(0), dq.columns()})),
          dk_sum(scratch.allocate(statistics, {dk.dim(0), dk.columns()})),
          dv_sum(scratch.allocate(statistics, {dk.dim(0), dk.columns()})),
          d_kv_partial(scratch.allocate(partial, {d_kv.buffer[0].dim(0), dk.columns()})),
          dv_local(partial == statistics ? dv_sum : scratch.allocate(partial, {dk.dim(0), dk.columns()})) {}
    KvRingBuffer kv, d_kv;
    Tensor dq_sum, dq_partial, dk_sum, dv_sum, d_kv_partial, dv_local;
};

}  // namespace

void ContextAttention::pack_kv(const AttentionActivations& a, const ContextMasks& masks,
                               const Tensor& packed) const {
    const std::int64_t rows = packed.dim(0) / 2, columns = a.k.columns();
    ops::copy_columns(backend_, {a.k, 0, masks.device_ring_rows}, {packed.slice(0, rows), 0}, columns);
    ops::copy_columns(backend_, {a.values, a.values.columns() - columns, masks.device_ring_rows},
                      {packed.slice(rows, 2 * rows), 0}, columns);
}

void ContextAttention::ring_forward(const AttentionActivations& a, const ContextMasks& masks,
                                    const Tensor& attn_out, backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    if (!masks.has_ring_rows()) {
        if (reserves_ring_scratch())
            RingForward(backend_, a, masks, attn_out, type_, statistics_, partial_type(), scratch);
        ops::attention(backend_, a.q, a.k, a.values, masks.mask, attn_out, a.lse, scratch, &masks.tables);
        return;
    }
    collective::ProcessGroup& cp = mesh_->cp();
    const RingOrder order{cp.rank(), cp.size()};
    const RingForward buffers(backend_, a, masks, attn_out, type_, statistics_, partial_type(), scratch);
    const auto& [kv, out, partial_out, partial_lse] = buffers;
    const auto kv_at = [&, &ring = kv](int step) { return ring.at(step, order.slice(step)); };
    pack_kv(a, masks, kv_at(0));
    // The transfer for step s + 1 is started before attention runs over the keys of step s, so that
    // communication overlaps with computation.
    auto shift = cp.start_shift(backend_, kv_at(0), kv_at(1), 1);
    const Tensor& local_out = partial_type() == statistics_ ? out : partial_out;
    ops::attention(backend_, a.q, a.k, a.values, masks.mask, local_out, a.lse, scratch, &masks.tables);
    if (local_out.data != out.data) ops::convert(backend_, local_out, out);
    for (int step = 1; step < order.slices; ++step) {
        cp.wait(shift);
        if (step + 1 < order.slices) shift = cp.start_shift(backend_, kv_at(step), kv_at(step + 1), 1);
        const std::int64_t rows = masks.ring_row_counts[order.slice(step)];
        if (rows == 0) continue;  // that slice has no cut sequence
        ops::attention(backend_, a.q, kv_at(step).slice(0, rows), kv_at(step).slice(rows, 2 * rows),
                       masks.ring_masks[order.slice(step)], partial_out, partial_lse, scratch, &masks.tables);
        ops::join_attention(backend_, partial_out, partial_lse, out, a.lse);
    }
    // In bf16 the one rounding of the result; in f32 and f64 the joins have worked in attn_out itself.
    if (out.data != attn_out.data) ops::convert(backend_, out, attn_out);
}

void ContextAttention::ring_backward(const AttentionActivations& a, const Tensor& d_attn_out,
                                     const Tensor& attn_out, const ContextMasks& masks, const Tensor& dq,
                                     const Tensor& dk, const Tensor& dqkv, backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    if (!masks.has_ring_rows()) {
        if (reserves_ring_scratch())
            RingBackward(backend_, masks, dq, dk, type_, statistics_, partial_type(), scratch);
        ops::attention_backward(backend_, d_attn_out, attn_out, a.q, a.k, a.values, a.lse, masks.mask, dq, dk,
                                dqkv, scratch, &masks.tables);
        return;
    }
    collective::ProcessGroup& cp = mesh_->cp();
    const RingOrder order{cp.rank(), cp.size()};
    const std::int64_t columns = a.k.columns();
    const RingBackward buffers(backend_, masks, dq, dk, type_, statistics_, partial_type(), scratch);
    const auto& [kv, d_kv, dq_sum, dq_partial, dk_sum, dv_sum, d_kv_partial, dv_local] = buffers;
    const auto kv_at = [&, &ring = kv](int step) { return ring.at(step, order.slice(step)); };
    pack_kv(a, masks, kv_at(0));
    auto kv_shift = cp.start_shift(backend_, kv_at(0), kv_at(1), 1);
    // lse and attn_out are those over all keys, so the gradients of the parts of a ring simply add up.
    const bool summed = partial_type() == statistics_;
    const Tensor &dq_local = summed ? dq_sum : dq_partial, &dk_local = summed ? dk_sum : dk;
    ops::attention_backward(backend_, d_attn_out, attn_out, a.q, a.k, a.values, a.lse, masks.mask, dq_local,
                            dk_local, dv_local, scratch, &masks.tables);
    if (!summed) {
        ops::convert(backend_, dq_local, dq_sum);
        ops::convert(backend_, dk_local, dk_sum);
        ops::convert(backend_, dv_local, dv_sum);
    }
    // The gradient of the keys that are here was summed so far by the ranks that held these keys before, and
    // arrives from the previous rank one step after the keys did. The first rank to compute it starts the sum
    // instead of receiving one.
    collective::ProcessGroup::Request d_kv_shift = 0;
    for (int step = 1; step < order.slices; ++step) {
        cp.wait(kv_shift);
        if (step + 1 < order.slices) kv_shift = cp.start_shift(backend_, kv_at(step), kv_at(step + 1), 1);
        const std::int64_t rows = masks.ring_row_counts[order.slice(step)];
        const Tensor partial = d_kv_partial.slice(0, 2 * rows), sum = d_kv.at(step, order.slice(step));
        if (rows > 0) {
            ops::attention_backward(backend_, d_attn_out, attn_out, a.q, kv_at(step).slice(0, rows),
                                    kv_at(step).slice(rows, 2 * rows), a.lse,
                                    masks.ring_masks[order.slice(step)], dq_partial, partial.slice(0, rows),
                                    partial.slice(rows, 2 * rows), scratch, &masks.tables);
            ops::add(backend_, dq_partial, dq_sum);
        }
        if (step > 1) {
            cp.wait(d_kv_shift);
            if (rows > 0) ops::add(backend_, partial, sum);
        } else if (rows > 0) {
            ops::convert(backend_, partial, sum);
        }
        d_kv_shift = cp.start_shift(backend_, sum, d_kv.at(step + 1, order.slice(step + 1)), 1);
    }
    cp.wait(d_kv_shift);
    // After a full turn the sums are back at the rank that owns the keys, which adds what it computed itself.
    const Tensor received = d_kv.at(order.slices, order.rank);
    const std::int64_t rows = masks.ring_row_counts[order.rank];
    ops::copy_columns(backend_, {received.slice(0, rows), 0}, {dk_sum, 0, masks.device_ring_rows}, columns,
                      true);
    ops::copy_columns(backend_, {received.slice(rows, 2 * rows), 0}, {dv_sum, 0, masks.device_ring_rows},
                      columns, true);
    ops::convert(backend_, dq_sum, dq);
    ops::convert(backend_, dk_sum, dk);
    ops::copy_columns(backend_, {dv_sum, 0}, {dqkv, dqkv.columns() - columns}, columns);
}

}  // namespace maestro::parallel
