#include "ops/attention/attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <source_location>

#include "backend/host_access.hpp"
#include "kernels/join_attention.hpp"
#include "ops/attention/cpu_attention.hpp"
#include "ops/attention/gpu_attention.hpp"
#include "ops/dispatch.hpp"

namespace maestro::ops {

AttentionSizes attention_sizes(const AttentionTensors& t, const VarlenMask& v) {
    AttentionSizes s{.heads = t.lse.columns(), .value_width = t.values.columns()};
    MAESTRO_CHECK(s.heads > 0 && t.q.columns() % s.heads == 0, "q {}, lse {}", t.q.describe(),
                  t.lse.describe());
    s.dim = t.q.columns() / s.heads;
    s.kv_heads = t.k.columns() / s.dim;
    MAESTRO_CHECK(s.kv_heads > 0 && s.heads % s.kv_heads == 0 && t.k.columns() == s.kv_heads * s.dim &&
                      s.value_width >= t.k.columns(),
                  "q {}, k {}, values {}", t.q.describe(), t.k.describe(), t.values.describe());
    MAESTRO_CHECK(!v.cu_seqlens_q.empty() && v.cu_seqlens_q.size() == v.cu_seqlens_k.size() &&
                      v.cu_seqlens_q.front() == 0 && v.cu_seqlens_k.front() == 0 &&
                      v.cu_seqlens_q.back() == t.q.dim(0) && v.cu_seqlens_k.back() == t.k.dim(0) &&
                      v.kv_limit.size() == static_cast<std::size_t>(t.q.dim(0)),
                  "offsets do not cover {} queries and {} keys", t.q.dim(0), t.k.dim(0));
    double pairs = 0, all_pairs = 0;
    for (std::size_t i = 1; i < v.cu_seqlens_q.size(); ++i) {
        const std::int64_t queries = v.cu_seqlens_q[i] - v.cu_seqlens_q[i - 1],
                           keys = v.cu_seqlens_k[i] - v.cu_seqlens_k[i - 1];
        MAESTRO_CHECK(queries >= 0 && keys >= 0, "offsets descend at {}", i);
        s.max_seqlen = std::max({s.max_seqlen, queries, keys});
        all_pairs += static_cast<double>(queries) * static_cast<double>(keys);
        for (std::int32_t t_q = v.cu_seqlens_q[i - 1]; t_q < v.cu_seqlens_q[i]; ++t_q) {
            const auto kv_limit = v.kv_limit[static_cast<std::size_t>(t_q)];
            MAESTRO_CHECK(
                kv_limit <= keys && kv_limit >= (t_q > v.cu_seqlens_q[i - 1] ? v.kv_limit[t_q - 1] : 0),
                "query {} attends to {} of {} keys", t_q, kv_limit, keys);
            // Half a pair less on a causal diagonal is the convention by which FLOPs of causal attention are
            // counted.
            pairs += static_cast<double>(kv_limit) - (v.causal ? 0.5 : 0.0);
        }
    }
    s.score_pairs = static_cast<double>(s.heads) * pairs;
    s.mean_keys = t.q.dim(0) > 0 ? all_pairs / static_cast<double>(t.q.dim(0)) : 0;
    return s;
}

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

namespace {

/// Runs a call whose work is that of so many GEMMs of the shape [queries, keys, dim].
void run(backend::Backend& b, const AttentionTensors& t, const VarlenMask& mask, double gemms, double bytes,
         backend::Arena& arena, AttentionTables* kept, std::source_location where) {
    const backend::ArenaScope scope(arena);
    std::optional<MaskTables> temporary;
    if (kept == nullptr)
        temporary = make_mask_tables(
            b, t, mask, static_cast<std::int64_t>(mask.cu_seqlens_q.size()) - 1,
            [&](const std::vector<std::int32_t>& words) { return backend::to_device(b, words, arena); });
    const MaskTables& tables = temporary ? *temporary : kept->of(b, t, mask);
    const AttentionSizes& s = tables.sizes;
    const Tensor scratch = cpu_attention_scratch(b, t, s, arena);
    const GpuAttention on_gpu(b, t, tables, arena);
    const auto dim = static_cast<double>(s.dim);
    // A backward pass computes five GEMMs, a forward pass two.
    const auto kind = gemms > 2 ? backend::Work::Kind::attention_backward : backend::Work::Kind::attention;
    b.launch(
        {2.0 * gemms * s.score_pairs * dim, bytes, dim, t.q.dtype, where, kind, s.mean_keys},
        [&] { cpu_attention(t, mask, s, scratch); }, [&](Stream stream) { on_gpu.run(b, stream); });
}

}  // namespace

void attention(backend::Backend& b, const Tensor& q, const Tensor& k, const Tensor& values,
               const VarlenMask& mask, const Tensor& out, const Tensor& lse, backend::Arena& arena,
               AttentionTables* tables) {
    const AttentionTensors t{.q = q, .k = k, .values = values, .out = out, .lse = lse};
    MAESTRO_CHECK(out.size() == q.size(), "out {} for {}", out.describe(), q.describe());
    // Two GEMMs: scores, and probabilities times values.
    run(b, t, mask, 2, static_cast<double>(2 * q.bytes() + 2 * k.bytes()), arena, tables,
        std::source_location::current());
}

void attention_backward(backend::Backend& b, const Tensor& dout, const Tensor& out, const Tensor& q,
                        const Tensor& k, const Tensor& values, const Tensor& lse, const VarlenMask& mask,
                        const Tensor& dq, const Tensor& dk, const Tensor& dvalues, backend::Arena& arena,
                        AttentionTables* tables) {
    const AttentionTensors t{.q = q,
                             .k = k,
                             .values = values,
                             .out = out,
                             .lse = lse,
                             .dout = dout,
                             .dq = dq,
                             .dk = dk,
                             .dvalues = dvalues};
    MAESTRO_CHECK(dq.size() == q.size() && dk.size() == k.size() && dvalues.dim(0) == values.dim(0) &&
                      dvalues.columns() >= k.columns() && dout.size() == q.size() && dk.dtype == dq.dtype &&
                      dvalues.dtype == dq.dtype,
                  "dq {}, dk {}, dvalues {}, dout {}", dq.describe(), dk.describe(), dvalues.describe(),
                  dout.describe());
    // Five GEMMs: scores, the gradients of probabilities and values, and those of queries and keys.
    run(b, t, mask, 5, static_cast<double>(4 * q.bytes() + 4 * k.bytes()), arena, tables,
        std::source_location::current());
}

namespace {

template <class O, class A>
void join(const Tensor& other_out, const Tensor& other_lse, const Tensor& out, const Tensor& lse) {
    const std::int64_t heads = lse.size(), dim = heads > 0 ? out.size() / heads : 0;
    parallel_for(heads, dim * 8, [&](std::int64_t i) {
        A& lse_here = lse.as<A>()[i];
        const A lse_there = other_lse.as<A>()[i];
        // No keys there. Skipping it also keeps two infinities from making a NaN.
        if (lse_there == -std::numeric_limits<A>::infinity()) return;
        const A larger = std::max(lse_here, lse_there);
        const A here = std::exp(lse_here - larger), there = std::exp(lse_there - larger);
        const A scale = A(1) / (here + there);
        A* o = out.as<A>() + i * dim;
        const O* p = other_out.as<O>() + i * dim;
        for (std::int64_t c = 0; c < dim; ++c) o[c] = (o[c] * here + static_cast<A>(p[c]) * there) * scale;
        lse_here = larger + std::log(here + there);
    });
}

}  // namespace

void join_attention(backend::Backend& b, const Tensor& other_out, const Tensor& other_lse, const Tensor& out,
                    const Tensor& lse) {
    MAESTRO_CHECK(
        other_out.size() == out.size() && other_lse.size() == lse.size() &&
            (other_out.dtype == out.dtype || (other_out.dtype == DType::bf16 && out.dtype == DType::f32)) &&
            (lse.columns() == 0 || out.columns() % lse.columns() == 0),
        "{} and {} cannot be joined to {} and {}", other_out.describe(), other_lse.describe(), out.describe(),
        lse.describe());
    b.launch(
        {3.0 * static_cast<double>(out.size()), 3.0 * static_cast<double>(out.bytes())},
        [&] {
            if (out.dtype == DType::f64)
                join<double, double>(other_out, other_lse, out, lse);
            else if (other_out.dtype == DType::f32)
                join<float, float>(other_out, other_lse, out, lse);
            else
                join<bf16, float>(other_out, other_lse, out, lse);
        },
        [&](Stream stream) { kernels::join_attention(stream, other_out, other_lse, out, lse); });
}

}  // namespace maestro::ops
