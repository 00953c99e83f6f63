#include "parallel/context_attention.hpp"

#include <algorithm>

#include "ops/attention/attention.hpp"
#include "ops/columns.hpp"
#include "ops/dispatch.hpp"
#include "ops/elementwise.hpp"
#include "ops/rows.hpp"

namespace maestro::parallel {

ContextAttention::ContextAttention(backend::Backend& backend, const Peers& peers, DType type,
                                   std::int64_t head_dim)
    : backend_(backend),
      peers_(&peers),
      type_(type),
      statistics_(ops::accumulate_type(type)),
      dim_(head_dim) {}

namespace {

/// An all-to-all between the rows of a slice with all heads and all rows with some heads. Where there are
/// fewer key heads than ranks, those that follow each other get the same one.
struct HeadExchange {
    HeadExchange(const Sequences& sequences, int count, std::int64_t query_columns,
                 std::int64_t every_key_head, std::int64_t dim)
        : ranks(count),
          rows(sequences.rows),
          all(sequences.partition.rows()),
          wide(query_columns / count),
          narrow(std::max<std::int64_t>(every_key_head / count, 1) * dim),
          each(static_cast<std::size_t>(count), rows),
          key_heads(every_key_head),
          head_dim(dim) {}
    /// What rank `rank` sends or gets, of a tensor by ranks.
    Tensor part(const Tensor& by_rank, int rank) const {
        return by_rank.slice(rank * rows, (rank + 1) * rows);
    }
    /// Of its key heads, among all of them.
    std::int64_t first_key_column(int rank) const { return rank * key_heads / ranks * head_dim; }

    int ranks;
    std::int64_t rows, all;          ///< of a slice, of all slices
    std::int64_t wide, narrow;       ///< columns of a rank's query heads and of its key heads
    std::vector<std::int64_t> each;  ///< rows of a part
    std::int64_t key_heads, head_dim;
};

}  // namespace

AttentionActivations ContextAttention::allocate(const Sequences& sequences, std::int64_t heads,
                                                std::int64_t key_heads, backend::Arena& saved) const {
    AttentionActivations a;
    if (!gathers()) {
        const std::int64_t rows = sequences.rows;
        a.q = saved.allocate(type_, {rows, heads * dim_});
        a.k = saved.allocate(type_, {rows, key_heads * dim_});
        a.lse = saved.allocate(statistics_, {rows, heads});
        return a;
    }
    const HeadExchange e(sequences, peers_->degrees.cp, heads * dim_, key_heads, dim_);
    a.q = saved.allocate(type_, {e.all, e.wide});
    a.k = saved.allocate(type_, {e.all, e.narrow});
    a.values = saved.allocate(type_, {e.all, e.narrow});
    a.out = saved.allocate(type_, {e.all, e.wide});
    a.lse = saved.allocate(statistics_, {e.all, e.wide / dim_});
    return a;
}

void ContextAttention::prepare(std::span<const std::int64_t> rows, Attention attention, std::int64_t heads,
                               std::int64_t key_heads, bool backward) const {
    const int cp = peers_->degrees.cp;
    const bool causal = attention == Attention::causal;
    if (cp > 1 && !gathers() && causal) return;  // a ring cuts every sequence
    backend::AttentionClass shape{.backward = backward, .causal = causal, .dim = dim_};
    if (gathers()) {
        shape.heads = heads / cp;
        shape.key_heads = std::max<std::int64_t>(key_heads / cp, 1);
        shape.value_width = shape.key_heads * dim_;
    } else {
        shape.heads = heads;
        shape.key_heads = key_heads;
        shape.value_width = (heads + 2 * key_heads) * dim_;
    }
    shape.gradient_width = backward ? shape.value_width : 0;
    ops::prepare_attention(backend_, type_, shape, rows);
}

namespace {

/// The slice whose keys are here after `turns` of the ring.
int slice_after(int own, int turns, int slices) {
    return (own + slices - turns) % slices;
}

/// Two places of [2 n, columns], one for what is used, one for what comes, n the most of any slice; where
/// nothing is computed as if all rows went round, since a micro-batch of no more rows may be dealt otherwise.
struct Turning {
    Turning(const backend::Backend& backend, const Sequences& sequences, DType type, std::int64_t columns,
            backend::Arena& scratch)
        : rows(sequences.travelling_rows) {
        std::int64_t most = 2 * *std::max_element(rows.begin(), rows.end());
        if (!backend.computes()) most = std::max(most, 2 * sequences.rows);
        place[0] = scratch.allocate(type, {most, columns});
        place[1] = scratch.allocate(type, {most, columns});
    }
    Tensor at(int turns, int slice) const { return place[turns % 2].slice(0, 2 * rows[slice]); }
    std::vector<std::int64_t> rows;
    Tensor place[2];
};

/// Scratch of a ring's forward. Parts are joined in the accumulation type: so the result is rounded once, as
/// without a ring.
struct RingForward {
    RingForward(const backend::Backend& backend, const AttentionActivations& a, const Sequences& sequences,
                const Tensor& mixed, DType type, DType statistics, backend::Arena& scratch)
        : keys(backend, sequences, type, a.k.columns(), scratch),
          out(type == statistics ? mixed : scratch.allocate(statistics, {mixed.dim(0), mixed.columns()})),
          part(scratch.allocate(statistics, {mixed.dim(0), mixed.columns()})),
          part_lse(scratch.allocate(statistics, {a.lse.dim(0), a.lse.columns()})) {}
    Turning keys;
    Tensor out, part, part_lse;
};

/// Of its backward. The sums of the gradients of keys and values go round behind them, in the accumulation
/// type.
struct RingBackward {
    RingBackward(const backend::Backend& backend, const Sequences& sequences, const Tensor& dq,
                 const Tensor& dk, DType type, DType statistics, backend::Arena& scratch)
        : keys(backend, sequences, type, dk.columns(), scratch),
          sums(backend, sequences, statistics, dk.columns(), scratch),
          q_sum(scratch.allocate(statistics, {dq.dim(0), dq.columns()})),
          q_part(scratch.allocate(statistics, {dq.dim(0), dq.columns()})),
          k_sum(scratch.allocate(statistics, {dk.dim(0), dk.columns()})),
          v_sum(scratch.allocate(statistics, {dk.dim(0), dk.columns()})),
          kv_part(scratch.allocate(statistics, {sums.place[0].dim(0), dk.columns()})) {}
    Turning keys, sums;
    Tensor q_sum, q_part, k_sum, v_sum, kv_part;
};

}  // namespace

void ContextAttention::forward(AttentionActivations& a, const Tensor& q, const Tensor& k, const Tensor& qkv,
                               const Sequences& sequences, const Tensor& mixed,
                               backend::Arena& scratch) const {
    if (!gathers()) {
        a.values = qkv;
        if (sequences.ring()) return ring_forward(a, sequences, mixed, scratch);
        const backend::ArenaScope scope(scratch);
        if (plans_ring()) RingForward(backend_, a, sequences, mixed, type_, statistics_, scratch);
        ops::attention(backend_, a.q, a.k, qkv, sequences.own, mixed, a.lse, scratch);
        return;
    }
    const backend::ArenaScope scope(scratch);
    collective::ProcessGroup& group = *peers_->context;
    const HeadExchange e(sequences, group.size(), q.columns(), k.columns() / dim_, dim_);
    const std::int64_t wide = e.wide, narrow = e.narrow;
    const Tensor send = scratch.allocate(type_, {e.ranks * e.rows, wide + 2 * narrow}),
                 received = scratch.allocate(type_, {e.all, wide + 2 * narrow});
    for (int to = 0; to < e.ranks; ++to) {
        const Tensor part = e.part(send, to);
        const std::int64_t key = e.first_key_column(to);
        ops::copy_columns(backend_, {q, to * wide}, {part, 0}, wide);
        ops::copy_columns(backend_, {k, key}, {part, wide}, narrow);
        ops::copy_columns(backend_, {qkv, qkv.columns() - k.columns() + key}, {part, wide + narrow}, narrow);
    }
    group.all_to_all(backend_, send, e.each, received, sequences.slice_rows);
    ops::copy_columns(backend_, {received, 0}, {a.q, 0, sequences.packed_places}, wide);
    ops::copy_columns(backend_, {received, wide}, {a.k, 0, sequences.packed_places}, narrow);
    ops::copy_columns(backend_, {received, wide + narrow}, {a.values, 0, sequences.packed_places}, narrow);
    ops::attention(backend_, a.q, a.k, a.values, sequences.own, a.out, a.lse, scratch);
    const Tensor by_slice = scratch.allocate(type_, {e.all, wide}),
                 by_heads = scratch.allocate(type_, {e.ranks * e.rows, wide});
    ops::gather_rows(backend_, a.out, sequences.packed_places, by_slice);
    group.all_to_all(backend_, by_slice, sequences.slice_rows, by_heads, e.each);
    for (int from = 0; from < e.ranks; ++from)
        ops::copy_columns(backend_, {e.part(by_heads, from), 0}, {mixed, from * wide}, wide);
}

void ContextAttention::backward(const AttentionActivations& a, const Tensor& d_mixed, const Tensor& mixed,
                                const Sequences& sequences, const Tensor& dq, const Tensor& dk,
                                const Tensor& dqkv, backend::Arena& scratch) const {
    if (!gathers()) {
        if (sequences.ring()) return ring_backward(a, d_mixed, mixed, sequences, dq, dk, dqkv, scratch);
        const backend::ArenaScope scope(scratch);
        if (plans_ring()) RingBackward(backend_, sequences, dq, dk, type_, statistics_, scratch);
        ops::attention_backward(backend_, d_mixed, mixed, a.q, a.k, a.values, a.lse, sequences.own, dq, dk,
                                dqkv, scratch);
        return;
    }
    const backend::ArenaScope scope(scratch);
    collective::ProcessGroup& group = *peers_->context;
    const HeadExchange e(sequences, group.size(), dq.columns(), dk.columns() / dim_, dim_);
    const std::int64_t wide = e.wide, narrow = e.narrow;
    const Tensor send = scratch.allocate(type_, {e.ranks * e.rows, wide}),
                 received = scratch.allocate(type_, {e.all, wide}),
                 d_out = scratch.allocate(type_, {e.all, wide});
    for (int to = 0; to < e.ranks; ++to)
        ops::copy_columns(backend_, {d_mixed, to * wide}, {e.part(send, to), 0}, wide);
    group.all_to_all(backend_, send, e.each, received, sequences.slice_rows);
    ops::scatter_rows(backend_, received, sequences.packed_places, d_out);
    const Tensor d_q = received, d_k = scratch.allocate(type_, {e.all, narrow}),
                 d_values = scratch.allocate(type_, {e.all, narrow});
    ops::attention_backward(backend_, d_out, a.out, a.q, a.k, a.values, a.lse, sequences.own, d_q, d_k,
                            d_values, scratch);
    const Tensor back = scratch.allocate(type_, {e.all, wide + 2 * narrow}),
                 mine = scratch.allocate(type_, {e.ranks * e.rows, wide + 2 * narrow});
    ops::copy_columns(backend_, {d_q, 0, sequences.packed_places}, {back, 0}, wide);
    ops::copy_columns(backend_, {d_k, 0, sequences.packed_places}, {back, wide}, narrow);
    ops::copy_columns(backend_, {d_values, 0, sequences.packed_places}, {back, wide + narrow}, narrow);
    group.all_to_all(backend_, back, sequences.slice_rows, mine, e.each);
    std::int64_t written = 0;  // key columns: what two ranks had the same key head of is summed
    for (int from = 0; from < e.ranks; ++from) {
        const Tensor part = e.part(mine, from);
        const std::int64_t key = e.first_key_column(from);
        const bool again = key < written;
        ops::copy_columns(backend_, {part, 0}, {dq, from * wide}, wide);
        ops::copy_columns(backend_, {part, wide}, {dk, key}, narrow, again);
        ops::copy_columns(backend_, {part, wide + narrow}, {dqkv, dqkv.columns() - dk.columns() + key},
                          narrow, again);
        written = key + narrow;
    }
}

void ContextAttention::pack_keys(const AttentionActivations& a, const Sequences& sequences,
                                 const Tensor& packed) const {
    const std::int64_t rows = packed.dim(0) / 2, columns = a.k.columns();
    ops::copy_columns(backend_, {a.k, 0, sequences.travelling_places}, {packed.slice(0, rows), 0}, columns);
    ops::copy_columns(backend_, {a.values, a.values.columns() - columns, sequences.travelling_places},
                      {packed.slice(rows, 2 * rows), 0}, columns);
}

void ContextAttention::ring_forward(const AttentionActivations& a, const Sequences& sequences,
                                    const Tensor& mixed, backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    collective::ProcessGroup& ring = *peers_->context;
    const int slices = ring.size(), own = ring.rank();
    const RingForward room(backend_, a, sequences, mixed, type_, statistics_, scratch);
    const auto& [keys, out, part, part_lse] = room;
    const auto slice = [&](int turns) { return slice_after(own, turns, slices); };
    const auto here = [&, &keys = keys](int turns) { return keys.at(turns, slice(turns)); };
    pack_keys(a, sequences, here(0));
    auto turn = ring.start_shift(backend_, here(0), here(1), 1);
    ops::attention(backend_, a.q, a.k, a.values, sequences.own, out, a.lse, scratch);
    for (int turns = 1; turns < slices; ++turns) {
        ring.wait(turn);
        if (turns + 1 < slices) turn = ring.start_shift(backend_, here(turns), here(turns + 1), 1);
        const std::int64_t rows = sequences.travelling_rows[slice(turns)];
        if (rows == 0) continue;
        ops::attention(backend_, a.q, here(turns).slice(0, rows), here(turns).slice(rows, 2 * rows),
                       sequences.others[slice(turns)], part, part_lse, scratch);
        ops::join_attention(backend_, part, part_lse, out, a.lse);
    }
    if (out.data != mixed.data) ops::convert(backend_, out, mixed);
}

void ContextAttention::ring_backward(const AttentionActivations& a, const Tensor& d_mixed,
                                     const Tensor& mixed, const Sequences& sequences, const Tensor& dq,
                                     const Tensor& dk, const Tensor& dqkv, backend::Arena& scratch) const {
    const backend::ArenaScope scope(scratch);
    collective::ProcessGroup& ring = *peers_->context;
    const int slices = ring.size(), own = ring.rank();
    const std::int64_t columns = a.k.columns();
    const RingBackward room(backend_, sequences, dq, dk, type_, statistics_, scratch);
    const auto& [keys, sums, q_sum, q_part, k_sum, v_sum, kv_part] = room;
    const auto slice = [&](int turns) { return slice_after(own, turns, slices); };
    const auto here = [&, &keys = keys](int turns) { return keys.at(turns, slice(turns)); };
    pack_keys(a, sequences, here(0));
    auto turn = ring.start_shift(backend_, here(0), here(1), 1);
    ops::attention_backward(backend_, d_mixed, mixed, a.q, a.k, a.values, a.lse, sequences.own, q_sum, k_sum,
                            v_sum, scratch);
    // What the rank before has summed for the slice whose keys are here, on its way.
    collective::ProcessGroup::Request sum_turn = 0;
    for (int turns = 1; turns < slices; ++turns) {
        ring.wait(turn);
        if (turns + 1 < slices) turn = ring.start_shift(backend_, here(turns), here(turns + 1), 1);
        const std::int64_t rows = sequences.travelling_rows[slice(turns)];
        const Tensor part = kv_part.slice(0, 2 * rows), sum = sums.at(turns, slice(turns));
        if (rows > 0) {
            ops::attention_backward(backend_, d_mixed, mixed, a.q, here(turns).slice(0, rows),
                                    here(turns).slice(rows, 2 * rows), a.lse, sequences.others[slice(turns)],
                                    q_part, part.slice(0, rows), part.slice(rows, 2 * rows), scratch);
            ops::add(backend_, q_part, q_sum);
        }
        if (turns > 1) {
            ring.wait(sum_turn);
            if (rows > 0) ops::add(backend_, part, sum);
        } else if (rows > 0) {
            ops::convert(backend_, part, sum);
        }
        sum_turn = ring.start_shift(backend_, sum, sums.at(turns + 1, slice(turns + 1)), 1);
    }
    ring.wait(sum_turn);
    const Tensor home = sums.at(slices, own);
    const std::int64_t rows = sequences.travelling_rows[own];
    ops::copy_columns(backend_, {home.slice(0, rows), 0}, {k_sum, 0, sequences.travelling_places}, columns,
                      true);
    ops::copy_columns(backend_, {home.slice(rows, 2 * rows), 0}, {v_sum, 0, sequences.travelling_places},
                      columns, true);
    ops::convert(backend_, q_sum, dq);
    ops::convert(backend_, k_sum, dk);
    ops::copy_columns(backend_, {v_sum, 0}, {dqkv, dqkv.columns() - columns}, columns);
}

}  // namespace maestro::parallel
