#include "ops/attention/attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/cpu_gemm.hpp"
#include "kernels/join_attention.hpp"
#include "ops/attention/gpu_attention.hpp"
#include "ops/dispatch.hpp"
#include "ops/fast_math.hpp"

namespace maestro::ops {

namespace {

/// Queries at a time: rows enough for the products, few enough that their scores against a long sequence stay
/// in the cache.
constexpr std::int64_t kQueryBlock = 64;

struct Shape {
    std::int64_t heads, kv_heads, dim, width, max_seqlen;
    double score_pairs = 0;  ///< (query, key) pairs over all heads
};

Shape shape_of(const Tensor& q, const Tensor& k, const Tensor& values, const Tensor& lse,
               const VarlenMask& v) {
    Shape s{.heads = lse.columns(), .kv_heads = 0, .dim = 0, .width = values.columns(), .max_seqlen = 0};
    MAESTRO_CHECK(s.heads > 0 && q.columns() % s.heads == 0, "q {}, lse {}", q.describe(), lse.describe());
    s.dim = q.columns() / s.heads;
    s.kv_heads = k.columns() / s.dim;
    MAESTRO_CHECK(s.kv_heads > 0 && s.heads % s.kv_heads == 0 && k.columns() == s.kv_heads * s.dim &&
                      s.width >= k.columns(),
                  "q {}, k {}, values {}", q.describe(), k.describe(), values.describe());
    MAESTRO_CHECK(!v.cu_seqlens_q.empty() && v.cu_seqlens_q.size() == v.cu_seqlens_k.size() &&
                      v.cu_seqlens_q.front() == 0 && v.cu_seqlens_k.front() == 0 &&
                      v.cu_seqlens_q.back() == q.dim(0) && v.cu_seqlens_k.back() == k.dim(0) &&
                      v.kv_limit.size() == static_cast<std::size_t>(q.dim(0)),
                  "offsets do not cover {} queries and {} keys", q.dim(0), k.dim(0));
    double pairs = 0;
    for (std::size_t i = 1; i < v.cu_seqlens_q.size(); ++i) {
        const std::int64_t queries = v.cu_seqlens_q[i] - v.cu_seqlens_q[i - 1],
                           keys = v.cu_seqlens_k[i] - v.cu_seqlens_k[i - 1];
        MAESTRO_CHECK(queries >= 0 && keys >= 0, "offsets descend at {}", i);
        s.max_seqlen = std::max({s.max_seqlen, queries, keys});
        for (std::int32_t t = v.cu_seqlens_q[i - 1]; t < v.cu_seqlens_q[i]; ++t) {
            const auto kv_limit = v.kv_limit[static_cast<std::size_t>(t)];
            MAESTRO_CHECK(kv_limit <= keys && kv_limit >= (t > v.cu_seqlens_q[i - 1] ? v.kv_limit[t - 1] : 0),
                          "query {} sees {} of {} keys", t, kv_limit, keys);
            pairs += static_cast<double>(kv_limit) - (v.causal ? 0.5 : 0.0);
        }
    }
    s.score_pairs = static_cast<double>(s.heads) * pairs;
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

/// A row for each thread of the host: `arrays` of [max_seqlen, dim] and `blocks` of [kQueryBlock,
/// max_seqlen].
Tensor thread_scratch(const backend::Backend& b, backend::Arena& arena, DType type, const Shape& s,
                      std::int64_t arrays, std::int64_t blocks) {
    if (!b.shares_memory()) return {};
    const std::int64_t each = s.max_seqlen * s.dim * arrays + kQueryBlock * s.max_seqlen * blocks;
    return arena.allocate(accumulate_type(type), {b.threads(), std::max<std::int64_t>(each, 1)});
}

/// The queries and keys of a sequence.
struct Rows {
    std::int64_t first, count, first_key, keys;
};

/// A key head's keys and values in a sequence, [keys, dim] each.
template <class T, class A>
void pack_head(const Shape& s, const Tensor& k, const Tensor& values, const Rows& at, std::int64_t kv_head,
               A* keys, A* value_rows) {
    pack(k.as<T>() + (at.first_key * s.kv_heads + kv_head) * s.dim, s.kv_heads * s.dim, at.keys, s.dim, keys);
    pack(values.as<T>() + at.first_key * s.width + s.width + (kv_head - s.kv_heads) * s.dim, s.width, at.keys,
         s.dim, value_rows);
}

/// body(rows, key head, scratch of this thread) for every sequence that has queries or keys and every key
/// head, over the threads. By key heads, because those of the queries that share one add to the same dk and
/// dv: one thread sums them, in the same order whatever the number of threads.
template <class A, class Body>
void for_each_key_head(const Shape& s, const VarlenMask& v, std::int64_t work_each, const Tensor& scratch,
                       Body&& body) {
    const auto sequences = static_cast<std::int64_t>(v.cu_seqlens_q.size()) - 1;
    const auto threads = static_cast<int>(scratch.dim(0));
    parallel_for(sequences * s.kv_heads, work_each, threads, [&](std::int64_t task) {
        const auto i = static_cast<std::size_t>(task / s.kv_heads);
        const Rows rows{v.cu_seqlens_q[i], v.cu_seqlens_q[i + 1] - v.cu_seqlens_q[i], v.cu_seqlens_k[i],
                        v.cu_seqlens_k[i + 1] - v.cu_seqlens_k[i]};
        A* const own = scratch.as<A>() + omp_get_thread_num() * scratch.columns();
        if (rows.count > 0 || rows.keys > 0) body(rows, task % s.kv_heads, own);
    });
}

/// The same where there is another type for results.
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

VarlenMask full_mask(std::span<const std::int32_t> offsets) {
    VarlenMask v{{offsets.begin(), offsets.end()}, {offsets.begin(), offsets.end()}, {}};
    for (std::size_t i = 1; i < offsets.size(); ++i)
        v.kv_limit.insert(v.kv_limit.end(), static_cast<std::size_t>(offsets[i] - offsets[i - 1]),
                          offsets[i] - offsets[i - 1]);
    return v;
}

VarlenMask causal_mask(std::span<const std::int32_t> offsets) {
    VarlenMask v{{offsets.begin(), offsets.end()}, {offsets.begin(), offsets.end()}, {}, true};
    for (std::size_t i = 1; i < offsets.size(); ++i)
        for (std::int32_t t = offsets[i - 1]; t < offsets[i]; ++t)
            v.kv_limit.push_back(t - offsets[i - 1] + 1);
    return v;
}

void attention(backend::Backend& b, const Tensor& q, const Tensor& k, const Tensor& values,
               const VarlenMask& mask, const Tensor& out, const Tensor& lse, backend::Arena& arena) {
    const Shape s = shape_of(q, k, values, lse, mask);
    MAESTRO_CHECK(out.size() == q.size(), "out {} for {}", out.describe(), q.describe());
    backend::ArenaScope scope(arena);
    const Tensor scratch = thread_scratch(b, arena, q.dtype, s, 4, 1);
    const GpuAttention on_gpu(b, {.q = q, .k = k, .values = values, .out = out, .lse = lse}, mask,
                              s.max_seqlen, arena);
    const backend::Work work{4.0 * s.score_pairs * static_cast<double>(s.dim),
                             static_cast<double>(2 * q.bytes() + 2 * k.bytes()), static_cast<double>(s.dim),
                             q.dtype};
    b.launch(
        work,
        [&] {
            by_types(q.dtype, out.dtype, [&]<class T, class O>(T, O) {
                using A = Accumulate<T>;
                const std::int64_t group = s.heads / s.kv_heads;
                const double scale = 1.0 / std::sqrt(static_cast<double>(s.dim));
                for_each_key_head<A>(
                    s, mask, s.max_seqlen * s.dim * group * 8, scratch,
                    [&](const Rows& at, std::int64_t kv_head, A* keys) {
                        A* value_rows = keys + s.max_seqlen * s.dim;
                        A* queries = value_rows + s.max_seqlen * s.dim;
                        A* result = queries + s.max_seqlen * s.dim;
                        A* scores = result + s.max_seqlen * s.dim;
                        pack_head<T>(s, k, values, at, kv_head, keys, value_rows);
                        for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
                            pack(q.as<T>() + (at.first * s.heads + head) * s.dim, s.heads * s.dim, at.count,
                                 s.dim, queries);
                            for (std::int64_t begin = 0; begin < at.count; begin += kQueryBlock) {
                                const std::int64_t rows = std::min(kQueryBlock, at.count - begin);
                                const std::int32_t* valid_keys = mask.kv_limit.data() + at.first + begin;
                                const std::int64_t kv_limit = valid_keys[rows - 1];
                                if (kv_limit == 0) {
                                    std::fill_n(result + begin * s.dim, rows * s.dim, A(0));
                                    for (std::int64_t r = 0; r < rows; ++r)
                                        lse.as<A>()[(at.first + begin + r) * s.heads + head] =
                                            -std::numeric_limits<A>::infinity();
                                    continue;
                                }
                                product(queries + begin * s.dim, keys, scores, rows, kv_limit, s.dim, s.dim,
                                        s.dim, kv_limit, false, true, false, scale);
                                for (std::int64_t r = 0; r < rows; ++r) {
                                    A* row = scores + r * kv_limit;
                                    const std::int64_t valid = valid_keys[r];
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
                                    for (std::int64_t c = valid; c < kv_limit; ++c) row[c] = 0;
                                    lse.as<A>()[(at.first + begin + r) * s.heads + head] =
                                        top + std::log(sum);
                                }
                                product(scores, value_rows, result + begin * s.dim, rows, s.dim, kv_limit,
                                        kv_limit, s.dim, s.dim, false, false, false);
                            }
                            unpack(result, at.count, s.dim, out.as<O>() + (at.first * s.heads + head) * s.dim,
                                   s.heads * s.dim);
                        }
                    });
            });
        },
        [&](Stream stream) { on_gpu.run(b, stream); });
}

void attention_backward(backend::Backend& b, const Tensor& dout, const Tensor& out, const Tensor& q,
                        const Tensor& k, const Tensor& values, const Tensor& lse, const VarlenMask& mask,
                        const Tensor& dq, const Tensor& dk, const Tensor& dvalues, backend::Arena& arena) {
    const Shape s = shape_of(q, k, values, lse, mask);
    MAESTRO_CHECK(dq.size() == q.size() && dk.size() == k.size() && dvalues.dim(0) == values.dim(0) &&
                      dvalues.columns() >= k.columns() && dout.size() == q.size() && dk.dtype == dq.dtype &&
                      dvalues.dtype == dq.dtype,
                  "dq {}, dk {}, dvalues {}, dout {}", dq.describe(), dk.describe(), dvalues.describe(),
                  dout.describe());
    backend::ArenaScope scope(arena);
    const Tensor scratch = thread_scratch(b, arena, q.dtype, s, 7, 2);
    const GpuAttention on_gpu(b,
                              {.q = q,
                               .k = k,
                               .values = values,
                               .out = out,
                               .lse = lse,
                               .dout = dout,
                               .dq = dq,
                               .dk = dk,
                               .dvalues = dvalues},
                              mask, s.max_seqlen, arena);
    const backend::Work work{10.0 * s.score_pairs * static_cast<double>(s.dim),
                             static_cast<double>(4 * q.bytes() + 4 * k.bytes()), static_cast<double>(s.dim),
                             q.dtype};
    b.launch(
        work,
        [&] {
            by_types(q.dtype, dq.dtype, [&]<class T, class O>(T, O) {
                using A = Accumulate<T>;
                const std::int64_t group = s.heads / s.kv_heads;
                const double scale = 1.0 / std::sqrt(static_cast<double>(s.dim));
                for_each_key_head<A>(
                    s, mask, s.max_seqlen * s.dim * group * 20, scratch,
                    [&](const Rows& at, std::int64_t kv_head, A* keys) {
                        const std::int64_t array = s.max_seqlen * s.dim;
                        A* value_rows = keys + array;
                        A* queries = value_rows + array;
                        A* gradient = queries + array;
                        A* d_queries = gradient + array;
                        A* d_keys = d_queries + array;
                        A* d_values = d_keys + array;
                        A* weights = d_values + array;
                        A* d_scores = weights + kQueryBlock * s.max_seqlen;
                        pack_head<T>(s, k, values, at, kv_head, keys, value_rows);
                        std::fill(d_keys, d_keys + 2 * array, A(0));  // and d_values
                        for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
                            const std::int64_t own = (at.first * s.heads + head) * s.dim,
                                               stride = s.heads * s.dim;
                            pack(q.as<T>() + own, stride, at.count, s.dim, queries);
                            pack(dout.as<T>() + own, stride, at.count, s.dim, gradient);
                            for (std::int64_t begin = 0; begin < at.count; begin += kQueryBlock) {
                                const std::int64_t rows = std::min(kQueryBlock, at.count - begin);
                                const std::int32_t* valid_keys = mask.kv_limit.data() + at.first + begin;
                                const std::int64_t kv_limit = valid_keys[rows - 1];
                                if (kv_limit == 0) {
                                    std::fill_n(d_queries + begin * s.dim, rows * s.dim, A(0));
                                    continue;
                                }
                                const A* block_gradient = gradient + begin * s.dim;
                                // The weights again, from lse: to keep them would take the [T, T] matrix.
                                product(queries + begin * s.dim, keys, weights, rows, kv_limit, s.dim, s.dim,
                                        s.dim, kv_limit, false, true, false, scale);
                                product(block_gradient, value_rows, d_scores, rows, kv_limit, s.dim, s.dim,
                                        s.dim, kv_limit, false, true, false);
                                for (std::int64_t r = 0; r < rows; ++r) {
                                    const std::int64_t token = at.first + begin + r;
                                    const std::int64_t valid = valid_keys[r];
                                    const A total = lse.as<A>()[token * s.heads + head];
                                    const T* o = out.as<T>() + (token * s.heads + head) * s.dim;
                                    A dot = 0;  // sum of gradient * output, the softmax's shared term
                                    for (std::int64_t c = 0; c < s.dim; ++c)
                                        dot += block_gradient[r * s.dim + c] * static_cast<A>(o[c]);
                                    A* p = weights + r * kv_limit;
                                    A* d = d_scores + r * kv_limit;
                                    MAESTRO_INDEPENDENT
                                    for (std::int64_t c = 0; c < valid; ++c) {
                                        p[c] = fast_exp(p[c] - total);
                                        d[c] = p[c] * (d[c] - dot);
                                    }
                                    for (std::int64_t c = valid; c < kv_limit; ++c) p[c] = d[c] = 0;
                                }
                                product(weights, block_gradient, d_values, kv_limit, s.dim, rows, kv_limit,
                                        s.dim, s.dim, true, false, true);
                                product(d_scores, queries + begin * s.dim, d_keys, kv_limit, s.dim, rows,
                                        kv_limit, s.dim, s.dim, true, false, true, scale);
                                product(d_scores, keys, d_queries + begin * s.dim, rows, s.dim, kv_limit,
                                        kv_limit, s.dim, s.dim, false, false, false, scale);
                            }
                            unpack(d_queries, at.count, s.dim, dq.as<O>() + own, stride);
                        }
                        unpack(d_keys, at.keys, s.dim,
                               dk.as<O>() + (at.first_key * s.kv_heads + kv_head) * s.dim,
                               s.kv_heads * s.dim);
                        const std::int64_t width = dvalues.columns();
                        unpack(
                            d_values, at.keys, s.dim,
                            dvalues.as<O>() + at.first_key * width + width + (kv_head - s.kv_heads) * s.dim,
                            width);
                    });
            });
        },
        [&](Stream stream) { on_gpu.run(b, stream); });
}

void join_attention(backend::Backend& b, const Tensor& other_out, const Tensor& other_lse, const Tensor& out,
                    const Tensor& lse) {
    MAESTRO_CHECK(other_out.size() == out.size() && other_lse.size() == lse.size() &&
                      (lse.columns() == 0 || out.columns() % lse.columns() == 0),
                  "{} and {} join {} and {}", other_out.describe(), other_lse.describe(), out.describe(),
                  lse.describe());
    b.launch(
        {3.0 * static_cast<double>(out.size()), 3.0 * static_cast<double>(out.bytes())},
        [&] {
            by_type(out.dtype, [&]<class A>(A) {
                const std::int64_t heads = lse.size(), dim = heads > 0 ? out.size() / heads : 0;
                if constexpr (std::is_same_v<A, Accumulate<A>>)
                    parallel_for(heads, dim * 8, [&](std::int64_t i) {
                        A& own = lse.as<A>()[i];
                        const A other = other_lse.as<A>()[i];
                        if (other == -std::numeric_limits<A>::infinity()) return;
                        const A top = std::max(own, other);
                        const A mine = std::exp(own - top), theirs = std::exp(other - top);
                        const A scale = A(1) / (mine + theirs);
                        A* o = out.as<A>() + i * dim;
                        const A* p = other_out.as<A>() + i * dim;
                        for (std::int64_t c = 0; c < dim; ++c) o[c] = (o[c] * mine + p[c] * theirs) * scale;
                        own = top + std::log(mine + theirs);
                    });
            });
        },
        [&](Stream stream) { kernels::join_attention(stream, other_out, other_lse, out, lse); });
}

}  // namespace maestro::ops
