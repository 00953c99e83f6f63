#include "ops/attention/cpu_attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/cpu_gemm.hpp"
#include "ops/dispatch.hpp"
#include "ops/fast_math.hpp"

namespace maestro::ops {

namespace {

/// Queries in a block: enough rows for the GEMMs, few enough that their scores against a long sequence stay
/// in the cache.
constexpr std::int64_t kQueryBlock = 64;

/// One call, as all of its threads see it.
struct Call {
    const AttentionTensors& t;
    const VarlenMask& mask;
    const AttentionSizes& s;
    std::int64_t group = s.heads / s.kv_heads;  ///< query heads that share a KV head
    double scale = 1.0 / std::sqrt(static_cast<double>(s.dim));
};

/// The queries and keys of one sequence.
struct SequenceRange {
    std::int64_t first_query, queries, first_key, keys;
};

/// Some queries of a sequence, at most kQueryBlock of them.
struct QueryBlock {
    std::int64_t begin, rows;    ///< begin: counted from the sequence's first query
    const std::int32_t* limits;  ///< how many keys each of them attends to
    /// Limits do not decrease within a sequence, so the last query attends to most keys: the GEMMs of the
    /// block are as wide as that.
    std::int64_t keys() const { return limits[rows - 1]; }
};

/// body(block) for all queries of a sequence.
template <class Body>
void for_each_query_block(const Call& call, const SequenceRange& at, Body&& body) {
    for (std::int64_t begin = 0; begin < at.queries; begin += kQueryBlock)
        body(QueryBlock{begin, std::min(kQueryBlock, at.queries - begin),
                        call.mask.kv_limit.data() + at.first_query + begin});
}

/// Copies [rows, dim] of a strided array to contiguous values of the accumulation type. The heads of a row
/// lie side by side, but the GEMMs below want the rows of one head together, and in f32 where the tensors are
/// bf16.
template <class T, class A>
void pack(const T* source, std::int64_t stride, std::int64_t rows, std::int64_t dim, A* target) {
    for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < dim; ++c) target[r * dim + c] = static_cast<A>(source[r * stride + c]);
}

/// The inverse of pack().
template <class T, class A>
void unpack(const A* source, std::int64_t rows, std::int64_t dim, T* target, std::int64_t stride) {
    for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < dim; ++c) target[r * stride + c] = static_cast<T>(source[r * dim + c]);
}

/// Packs the keys and values [keys, dim] of one KV head in a sequence.
template <class T, class A>
void pack_kv_head(const Call& call, const SequenceRange& at, std::int64_t kv_head, A* keys, A* values) {
    const AttentionSizes& s = call.s;
    pack(call.t.k.as<T>() + (at.first_key * s.kv_heads + kv_head) * s.dim, s.kv_heads * s.dim, at.keys, s.dim,
         keys);
    pack(
        call.t.values.as<T>() + at.first_key * s.value_width + s.value_width + (kv_head - s.kv_heads) * s.dim,
        s.value_width, at.keys, s.dim, values);
}

/// y[m, n] (+)= alpha op(a) op(b), as Backend::Gemm has it.
template <class A>
void gemm(const A* a, const A* b, A* y, std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t lda,
          std::int64_t ldb, std::int64_t ldy, bool transpose_a, bool transpose_b, bool accumulate,
          double alpha = 1.0) {
    backend::cpu_gemm({.a = a,
                       .b = b,
                       .y = y,
                       .m = m,
                       .n = n,
                       .k = k,
                       .lda = lda,
                       .ldb = ldb,
                       .ldy = ldy,
                       .transpose_a = transpose_a,
                       .transpose_b = transpose_b,
                       .accumulate = accumulate,
                       .in = dtype_of<A>(),
                       .out = dtype_of<A>(),
                       .alpha = alpha});
}

/// Turns the first `valid` scores of a row into softmax probabilities and the others into zeros. Returns the
/// logarithm of the sum of exponentials.
template <class A>
A softmax_row(A* row, std::int64_t valid, std::int64_t columns) {
    // The largest score is subtracted, so that no exponential overflows.
    A row_max = -std::numeric_limits<A>::infinity();
#pragma omp simd reduction(max : row_max)
    for (std::int64_t c = 0; c < valid; ++c) row_max = std::max(row_max, row[c]);
    A sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t c = 0; c < valid; ++c) {
        row[c] = fast_exp(row[c] - row_max);
        sum += row[c];
    }
    const A inverse = A(1) / sum;
    for (std::int64_t c = 0; c < valid; ++c) row[c] *= inverse;
    for (std::int64_t c = valid; c < columns; ++c) row[c] = 0;
    return row_max + std::log(sum);
}

/// The forward pass of the queries that share one KV head, in one sequence.
template <class T, class O>
void forward_kv_head(const Call& call, const SequenceRange& at, std::int64_t kv_head,
                     Accumulate<T>* scratch) {
    using A = Accumulate<T>;
    const std::int64_t heads = call.s.heads, dim = call.s.dim, array = call.s.max_seqlen * dim;
    A* const keys = scratch;
    A* const values = keys + array;
    A* const queries = values + array;
    A* const out = queries + array;
    A* const scores = out + array;
    pack_kv_head<T>(call, at, kv_head, keys, values);
    for (std::int64_t head = kv_head * call.group; head < (kv_head + 1) * call.group; ++head) {
        const std::int64_t first = (at.first_query * heads + head) * dim, stride = heads * dim;
        pack(call.t.q.as<T>() + first, stride, at.queries, dim, queries);
        for_each_query_block(call, at, [&](const QueryBlock& block) {
            const std::int64_t columns = block.keys();
            A* const block_out = out + block.begin * dim;
            A* const lse = call.t.lse.as<A>() + (at.first_query + block.begin) * heads + head;
            if (columns == 0) {
                std::fill_n(block_out, block.rows * dim, A(0));
                for (std::int64_t r = 0; r < block.rows; ++r)
                    lse[r * heads] = -std::numeric_limits<A>::infinity();
                return;
            }
            gemm(queries + block.begin * dim, keys, scores, block.rows, columns, dim, dim, dim, columns,
                 false, true, false, call.scale);
            for (std::int64_t r = 0; r < block.rows; ++r)
                lse[r * heads] = softmax_row(scores + r * columns, block.limits[r], columns);
            gemm(scores, values, block_out, block.rows, dim, columns, columns, dim, dim, false, false, false);
        });
        unpack(out, at.queries, dim, call.t.out.as<O>() + first, stride);
    }
}

/// Turns the raw scores of a query into softmax probabilities p, and d_p, the gradient of these, into the
/// gradient of the scores: p (d_p - sum(dout * out)). Keys beyond `valid` get zeros.
template <class A, class T>
void softmax_backward_row(A* p, A* d_p, const A* dout, const T* out, A lse, std::int64_t dim,
                          std::int64_t valid, std::int64_t columns) {
    A dot = 0;
    for (std::int64_t c = 0; c < dim; ++c) dot += dout[c] * static_cast<A>(out[c]);
    MAESTRO_INDEPENDENT
    for (std::int64_t c = 0; c < valid; ++c) {
        p[c] = fast_exp(p[c] - lse);
        d_p[c] = p[c] * (d_p[c] - dot);
    }
    for (std::int64_t c = valid; c < columns; ++c) p[c] = d_p[c] = 0;
}

/// The backward pass of the queries that share one KV head, in one sequence.
template <class T, class O>
void backward_kv_head(const Call& call, const SequenceRange& at, std::int64_t kv_head,
                      Accumulate<T>* scratch) {
    using A = Accumulate<T>;
    const AttentionSizes& s = call.s;
    const std::int64_t heads = s.heads, dim = s.dim, array = s.max_seqlen * dim;
    A* const keys = scratch;
    A* const values = keys + array;
    A* const queries = values + array;
    A* const dout = queries + array;
    A* const d_queries = dout + array;
    A* const d_keys = d_queries + array;
    A* const d_values = d_keys + array;
    A* const p = d_values + array;
    A* const d_scores = p + kQueryBlock * s.max_seqlen;
    pack_kv_head<T>(call, at, kv_head, keys, values);
    std::fill(d_keys, d_keys + 2 * array, A(0));  // and d_values, which follows it
    for (std::int64_t head = kv_head * call.group; head < (kv_head + 1) * call.group; ++head) {
        const std::int64_t first = (at.first_query * heads + head) * dim, stride = heads * dim;
        pack(call.t.q.as<T>() + first, stride, at.queries, dim, queries);
        pack(call.t.dout.as<T>() + first, stride, at.queries, dim, dout);
        for_each_query_block(call, at, [&](const QueryBlock& block) {
            const std::int64_t columns = block.keys(), rows = block.rows;
            if (columns == 0) {
                std::fill_n(d_queries + block.begin * dim, rows * dim, A(0));
                return;
            }
            const A* const block_queries = queries + block.begin * dim;
            const A* const block_dout = dout + block.begin * dim;
            // The probabilities are recomputed from the scores and lse: saving them would take the [T, T]
            // matrix that this algorithm avoids.
            gemm(block_queries, keys, p, rows, columns, dim, dim, dim, columns, false, true, false,
                 call.scale);
            gemm(block_dout, values, d_scores, rows, columns, dim, dim, dim, columns, false, true, false);
            for (std::int64_t r = 0; r < rows; ++r) {
                const std::int64_t query = at.first_query + block.begin + r;
                softmax_backward_row(p + r * columns, d_scores + r * columns, block_dout + r * dim,
                                     call.t.out.as<T>() + (query * heads + head) * dim,
                                     call.t.lse.as<A>()[query * heads + head], dim, block.limits[r], columns);
            }
            gemm(p, block_dout, d_values, columns, dim, rows, columns, dim, dim, true, false, true);
            gemm(d_scores, block_queries, d_keys, columns, dim, rows, columns, dim, dim, true, false, true,
                 call.scale);
            gemm(d_scores, keys, d_queries + block.begin * dim, rows, dim, columns, columns, dim, dim, false,
                 false, false, call.scale);
        });
        unpack(d_queries, at.queries, dim, call.t.dq.as<O>() + first, stride);
    }
    unpack(d_keys, at.keys, dim, call.t.dk.as<O>() + (at.first_key * s.kv_heads + kv_head) * dim,
           s.kv_heads * dim);
    const std::int64_t width = call.t.dvalues.columns();
    unpack(d_values, at.keys, dim,
           call.t.dvalues.as<O>() + at.first_key * width + width + (kv_head - s.kv_heads) * dim, width);
}

/// body(sequence, KV head, scratch of this thread) for every sequence that has queries or keys and every KV
/// head, over the threads. A task is a KV head and not a query head, because the query heads that share it
/// add to the same dk and dv: one thread sums them, in the same order whatever the number of threads.
template <class A, class Body>
void for_each_kv_head(const Call& call, std::int64_t work_each, const Tensor& scratch, Body&& body) {
    const VarlenMask& v = call.mask;
    const auto sequences = static_cast<std::int64_t>(v.cu_seqlens_q.size()) - 1;
    const auto threads = static_cast<int>(scratch.dim(0));
    parallel_for(sequences * call.s.kv_heads, work_each, threads, [&](std::int64_t task) {
        const auto i = static_cast<std::size_t>(task / call.s.kv_heads);
        const SequenceRange at{v.cu_seqlens_q[i], v.cu_seqlens_q[i + 1] - v.cu_seqlens_q[i],
                               v.cu_seqlens_k[i], v.cu_seqlens_k[i + 1] - v.cu_seqlens_k[i]};
        A* const thread_scratch = scratch.as<A>() + omp_get_thread_num() * scratch.columns();
        if (at.queries > 0 || at.keys > 0) body(at, task % call.s.kv_heads, thread_scratch);
    });
}

/// body(T{}, O{}) for inputs of type T and results of type O, which is T or its accumulation type.
template <class Body>
void by_types(DType input, DType result, Body&& body) {
    by_type(input, [&]<class T>(T t) {
        if (result == input)
            body(t, t);
        else
            body(t, Accumulate<T>{});
    });
}

}  // namespace

Tensor cpu_attention_scratch(const backend::Backend& b, const AttentionTensors& t, const AttentionSizes& s,
                             backend::Arena& arena) {
    if (!b.shares_memory()) return {};
    // As forward_kv_head() and backward_kv_head() divide it: arrays of [max_seqlen, dim], and blocks of
    // [kQueryBlock, max_seqlen].
    const std::int64_t arrays = t.backward() ? 7 : 4, blocks = t.backward() ? 2 : 1;
    const std::int64_t each = s.max_seqlen * s.dim * arrays + kQueryBlock * s.max_seqlen * blocks;
    return arena.allocate(accumulate_type(t.q.dtype), {b.threads(), std::max<std::int64_t>(each, 1)});
}

void cpu_attention(const AttentionTensors& t, const VarlenMask& mask, const AttentionSizes& s,
                   const Tensor& scratch) {
    const Call call{t, mask, s};
    // Rough arithmetic of a task, by which parallel_for() decides whether waking the threads pays.
    const std::int64_t work = s.max_seqlen * s.dim * call.group * (t.backward() ? 20 : 8);
    by_types(t.q.dtype, t.backward() ? t.dq.dtype : t.out.dtype, [&]<class T, class O>(T, O) {
        using A = Accumulate<T>;
        for_each_kv_head<A>(call, work, scratch,
                            [&](const SequenceRange& at, std::int64_t kv_head, A* thread_scratch) {
                                if (t.backward())
                                    backward_kv_head<T, O>(call, at, kv_head, thread_scratch);
                                else
                                    forward_kv_head<T, O>(call, at, kv_head, thread_scratch);
                            });
    });
}

}  // namespace maestro::ops
