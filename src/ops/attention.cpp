#include "ops/attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu_gemm.hpp"
#include "ops/dispatch.hpp"
#include "ops/fast_math.hpp"

namespace maestro::ops {

namespace {

/// Queries at a time: rows enough for the products, few enough that their scores against a long sequence stay
/// in the cache.
constexpr std::int64_t kQueryBlock = 64;

struct Shape {
    std::int64_t rows, heads, key_heads, dim, width, longest;
    double score_pairs = 0;  ///< (query, key) pairs over all heads
};

Shape shape_of(const Tensor& q, const Tensor& k, const Tensor& qkv, const Tensor& lse,
               std::span<const std::int32_t> offsets, bool causal) {
    Shape s{.rows = q.rows(),
            .heads = lse.columns(),
            .key_heads = 0,
            .dim = 0,
            .width = qkv.columns(),
            .longest = 0};
    MAESTRO_CHECK(s.heads > 0 && q.columns() % s.heads == 0, "q {}, lse {}", q.describe(), lse.describe());
    s.dim = q.columns() / s.heads;
    s.key_heads = k.columns() / s.dim;
    MAESTRO_CHECK(
        s.key_heads > 0 && s.heads % s.key_heads == 0 && (s.heads + 2 * s.key_heads) * s.dim == s.width,
        "q {}, k {}, qkv {}", q.describe(), k.describe(), qkv.describe());
    MAESTRO_CHECK(!offsets.empty() && offsets.front() == 0 && offsets.back() == s.rows,
                  "offsets do not cover {} rows", s.rows);
    for (std::size_t i = 1; i < offsets.size(); ++i) {
        const std::int64_t length = offsets[i] - offsets[i - 1];
        MAESTRO_CHECK(length >= 0, "offsets descend at {}", i);
        s.longest = std::max(s.longest, length);
        s.score_pairs += static_cast<double>(s.heads) * static_cast<double>(length) *
                         static_cast<double>(length) * (causal ? 0.5 : 1.0);
    }
    return s;
}

/// rows x dim of a strided array, as contiguous arithmetic values, and back. Heads lie side by side in a row;
/// the many small products below want one head's rows together, and bf16 is widened on the way.
template <class T, class A>
void pack(const T* source, std::int64_t stride, std::int64_t rows, std::int64_t dim, A* target) {
    for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < dim; ++c) target[r * dim + c] = static_cast<A>(source[r * stride + c]);
}

template <class T, class A>
void unpack(const A* source, std::int64_t rows, std::int64_t dim, T* target, std::int64_t stride) {
    for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < dim; ++c) target[r * stride + c] = static_cast<T>(source[r * dim + c]);
}

template <class A>
void product(const A* a, const A* b, A* y, std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t lda,
             std::int64_t ldb, std::int64_t ldy, bool ta, bool tb, bool accumulate, double alpha = 1.0) {
    backend::cpu_gemm({.a = a,
                       .b = b,
                       .y = y,
                       .m = m,
                       .n = n,
                       .k = k,
                       .lda = lda,
                       .ldb = ldb,
                       .ldy = ldy,
                       .transpose_a = ta,
                       .transpose_b = tb,
                       .accumulate = accumulate,
                       .in = dtype_of<A>(),
                       .out = dtype_of<A>()},
                      alpha);
}

/// A row for each thread of the backend: `arrays` of [longest, dim] and `blocks` of [kQueryBlock, longest].
Tensor thread_scratch(const backend::Backend& b, backend::Arena& arena, DType type, const Shape& s,
                      std::int64_t arrays, std::int64_t blocks) {
    const std::int64_t each = s.longest * s.dim * arrays + kQueryBlock * s.longest * blocks;
    return arena.allocate(accumulate_type(type), {b.threads(), std::max<std::int64_t>(each, 1)});
}

/// body(first row, rows, key head, scratch of this thread) for every sequence that has rows and every key
/// head, over the threads. By key heads, because those of the queries that share one add to the same dk and
/// dv: one thread sums them, in the same order whatever the number of threads.
template <class A, class Body>
void for_each_key_head(const Shape& s, std::span<const std::int32_t> offsets, std::int64_t work_each,
                       const Tensor& scratch, Body&& body) {
    const auto sequences = static_cast<std::int64_t>(offsets.size()) - 1;
    const auto threads = static_cast<int>(scratch.dim(0));
    parallel_for(sequences * s.key_heads, work_each, threads, [&](std::int64_t task) {
        const auto sequence = static_cast<std::size_t>(task / s.key_heads);
        const std::int64_t first = offsets[sequence], length = offsets[sequence + 1] - first;
        A* const own = scratch.as<A>() + omp_get_thread_num() * scratch.columns();
        if (length > 0) body(first, length, task % s.key_heads, own);
    });
}

}  // namespace

void attention(backend::Backend& b, const Tensor& q, const Tensor& k, const Tensor& qkv,
               std::span<const std::int32_t> offsets, bool causal, const Tensor& out, const Tensor& lse,
               backend::Arena& arena) {
    const Shape s = shape_of(q, k, qkv, lse, offsets, causal);
    backend::ArenaScope scope(arena);
    const Tensor scratch = thread_scratch(b, arena, q.dtype, s, 4, 1);
    const backend::Work work{4.0 * s.score_pairs * static_cast<double>(s.dim),
                             static_cast<double>(2 * q.bytes() + 2 * k.bytes()), static_cast<double>(s.dim),
                             q.dtype};
    b.launch(work, [&] {
        by_type(q.dtype, [&]<class T>(T) {
            using A = Accumulate<T>;
            const std::int64_t group = s.heads / s.key_heads;
            const double scale = 1.0 / std::sqrt(static_cast<double>(s.dim));
            for_each_key_head<A>(
                s, offsets, s.longest * s.dim * group * 8, scratch,
                [&](std::int64_t first, std::int64_t length, std::int64_t key_head, A* keys) {
                    A* values = keys + s.longest * s.dim;
                    A* queries = values + s.longest * s.dim;
                    A* result = queries + s.longest * s.dim;
                    A* scores = result + s.longest * s.dim;
                    pack(k.as<T>() + (first * s.key_heads + key_head) * s.dim, s.key_heads * s.dim, length,
                         s.dim, keys);
                    pack(qkv.as<T>() + first * s.width + (s.heads + s.key_heads + key_head) * s.dim, s.width,
                         length, s.dim, values);
                    for (std::int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
                        pack(q.as<T>() + (first * s.heads + head) * s.dim, s.heads * s.dim, length, s.dim,
                             queries);
                        for (std::int64_t begin = 0; begin < length; begin += kQueryBlock) {
                            const std::int64_t rows = std::min(kQueryBlock, length - begin);
                            const std::int64_t seen = causal ? begin + rows : length;
                            product(queries + begin * s.dim, keys, scores, rows, seen, s.dim, s.dim, s.dim,
                                    seen, false, true, false, scale);
                            for (std::int64_t r = 0; r < rows; ++r) {
                                A* row = scores + r * seen;
                                const std::int64_t valid = causal ? begin + r + 1 : length;
                                // Less the largest, so that no exponential overflows.
                                A top = -std::numeric_limits<A>::infinity();
#pragma omp simd reduction(max : top)
                                for (std::int64_t c = 0; c < valid; ++c) top = std::max(top, row[c]);
                                A sum = 0;
#pragma omp simd reduction(+ : sum)
                                for (std::int64_t c = 0; c < valid; ++c) {
                                    row[c] = fast_exp(row[c] - top);
                                    sum += row[c];
                                }
                                const A inverse = A(1) / sum;
                                for (std::int64_t c = 0; c < valid; ++c) row[c] *= inverse;
                                for (std::int64_t c = valid; c < seen; ++c) row[c] = 0;
                                lse.as<A>()[(first + begin + r) * s.heads + head] = top + std::log(sum);
                            }
                            product(scores, values, result + begin * s.dim, rows, s.dim, seen, seen, s.dim,
                                    s.dim, false, false, false);
                        }
                        unpack(result, length, s.dim, out.as<T>() + (first * s.heads + head) * s.dim,
                               s.heads * s.dim);
                    }
                });
        });
    });
}

void attention_backward(backend::Backend& b, const Tensor& dout, const Tensor& out, const Tensor& q,
                        const Tensor& k, const Tensor& qkv, const Tensor& lse,
                        std::span<const std::int32_t> offsets, bool causal, const Tensor& dq,
                        const Tensor& dk, const Tensor& dqkv, backend::Arena& arena) {
    const Shape s = shape_of(q, k, qkv, lse, offsets, causal);
    MAESTRO_CHECK(dq.size() == q.size() && dk.size() == k.size() && dqkv.size() == qkv.size() &&
                      dout.size() == q.size(),
                  "dq {}, dk {}, dqkv {}, dout {}", dq.describe(), dk.describe(), dqkv.describe(),
                  dout.describe());
    backend::ArenaScope scope(arena);
    const Tensor scratch = thread_scratch(b, arena, q.dtype, s, 7, 2);
    const backend::Work work{10.0 * s.score_pairs * static_cast<double>(s.dim),
                             static_cast<double>(4 * q.bytes() + 4 * k.bytes()), static_cast<double>(s.dim),
                             q.dtype};
    b.launch(work, [&] {
        by_type(q.dtype, [&]<class T>(T) {
            using A = Accumulate<T>;
            const std::int64_t group = s.heads / s.key_heads;
            const double scale = 1.0 / std::sqrt(static_cast<double>(s.dim));
            for_each_key_head<A>(
                s, offsets, s.longest * s.dim * group * 20, scratch,
                [&](std::int64_t first, std::int64_t length, std::int64_t key_head, A* keys) {
                    const std::int64_t array = s.longest * s.dim;
                    A* values = keys + array;
                    A* queries = values + array;
                    A* gradient = queries + array;
                    A* d_queries = gradient + array;
                    A* d_keys = d_queries + array;
                    A* d_values = d_keys + array;
                    A* weights = d_values + array;
                    A* d_scores = weights + kQueryBlock * s.longest;
                    pack(k.as<T>() + (first * s.key_heads + key_head) * s.dim, s.key_heads * s.dim, length,
                         s.dim, keys);
                    const std::int64_t value_at =
                        first * s.width + (s.heads + s.key_heads + key_head) * s.dim;
                    pack(qkv.as<T>() + value_at, s.width, length, s.dim, values);
                    std::fill(d_keys, d_keys + 2 * array, A(0));  // and d_values
                    for (std::int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
                        const std::int64_t at = (first * s.heads + head) * s.dim, stride = s.heads * s.dim;
                        pack(q.as<T>() + at, stride, length, s.dim, queries);
                        pack(dout.as<T>() + at, stride, length, s.dim, gradient);
                        for (std::int64_t begin = 0; begin < length; begin += kQueryBlock) {
                            const std::int64_t rows = std::min(kQueryBlock, length - begin);
                            const std::int64_t seen = causal ? begin + rows : length;
                            const A* block_gradient = gradient + begin * s.dim;
                            // The weights again, from lse: to keep them would take the [T, T] matrix.
                            product(queries + begin * s.dim, keys, weights, rows, seen, s.dim, s.dim, s.dim,
                                    seen, false, true, false, scale);
                            product(block_gradient, values, d_scores, rows, seen, s.dim, s.dim, s.dim, seen,
                                    false, true, false);
                            for (std::int64_t r = 0; r < rows; ++r) {
                                const std::int64_t token = first + begin + r;
                                const std::int64_t valid = causal ? begin + r + 1 : length;
                                const A total = lse.as<A>()[token * s.heads + head];
                                const T* o = out.as<T>() + (token * s.heads + head) * s.dim;
                                A dot = 0;  // sum of gradient * output, the softmax's shared term
                                for (std::int64_t c = 0; c < s.dim; ++c)
                                    dot += block_gradient[r * s.dim + c] * static_cast<A>(o[c]);
                                A* p = weights + r * seen;
                                A* d = d_scores + r * seen;
                                MAESTRO_INDEPENDENT
                                for (std::int64_t c = 0; c < valid; ++c) {
                                    p[c] = fast_exp(p[c] - total);
                                    d[c] = p[c] * (d[c] - dot);
                                }
                                for (std::int64_t c = valid; c < seen; ++c) p[c] = d[c] = 0;
                            }
                            product(weights, block_gradient, d_values, seen, s.dim, rows, seen, s.dim, s.dim,
                                    true, false, true);
                            product(d_scores, queries + begin * s.dim, d_keys, seen, s.dim, rows, seen, s.dim,
                                    s.dim, true, false, true, scale);
                            product(d_scores, keys, d_queries + begin * s.dim, rows, s.dim, seen, seen, s.dim,
                                    s.dim, false, false, false, scale);
                        }
                        unpack(d_queries, length, s.dim, dq.as<T>() + at, stride);
                    }
                    unpack(d_keys, length, s.dim, dk.as<T>() + (first * s.key_heads + key_head) * s.dim,
                           s.key_heads * s.dim);
                    unpack(d_values, length, s.dim, dqkv.as<T>() + value_at, s.width);
                });
        });
    });
}

}  // namespace maestro::ops
