#include "ops/rotary.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <vector>

#include "kernels/rotary.hpp"
#include "ops/device_scratch.hpp"
#include "ops/dispatch.hpp"

namespace maestro::ops {

namespace {

constexpr std::int64_t kMaxHeadDim = 2 * RotaryPairs::kMost;

struct Heads {
    std::int64_t dim;         ///< channels of a head
    std::int64_t query, key;  ///< numbers of query and KV heads
    std::int64_t width;       ///< columns of qkv
};

Heads heads(const Tensor& qkv, const Tensor& cos, const Tensor& q, const Tensor& k) {
    Heads h{.dim = 2 * cos.columns(), .query = 0, .key = 0, .width = qkv.columns()};
    MAESTRO_CHECK(h.dim > 0 && h.dim <= kMaxHeadDim, "head of {} channels (at most {})", h.dim, kMaxHeadDim);
    h.query = q.columns() / h.dim;
    h.key = k.columns() / h.dim;
    MAESTRO_CHECK(
        (h.query + 2 * h.key) * h.dim == h.width && q.rows() == qkv.rows() && k.rows() == qkv.rows(),
        "qkv {}, q {}, k {}, heads of {}", qkv.describe(), q.describe(), k.describe(), h.dim);
    return h;
}

/// Allocates the partial sums of a norm's gradient over `count` heads, where the device needs them.
Tensor head_partials(const backend::Backend& b, const Tensor& gradient, std::int64_t count,
                     backend::Arena& scratch) {
    if (gradient.rank == 0) return {};
    return device_scratch(b, scratch, gradient.dtype, {kernels::head_chunks(count), gradient.size()});
}

/// The tensors of head_norm_rotary_backward().
struct BackwardTensors {
    const Tensor &dq, &dk, &qkv, &q_norm, &k_norm, &cos, &sin, &rstd, &dqkv, &dq_norm, &dk_norm;
};

/// Writes one head of dqkv, for all rows: the inverse rotation, then the backward pass of the norm.
template <class T>
void head_backward(const BackwardTensors& t, const Heads& h, std::int64_t head) {
    using A = Accumulate<T>;
    const std::int64_t half = h.dim / 2;
    const bool query = head < h.query;
    const Tensor& norm = query ? t.q_norm : t.k_norm;
    std::array<A, kMaxHeadDim> v{};
    for (std::int64_t row = 0; row < t.qkv.rows(); ++row) {
        const A* c = t.cos.as<A>() + row * half;
        const A* s = t.sin.as<A>() + row * half;
        const T* g = query ? t.dq.as<T>() + (row * h.query + head) * h.dim
                           : t.dk.as<T>() + (row * h.key + head - h.query) * h.dim;
        T* out = t.dqkv.as<T>() + row * h.width + head * h.dim;
        MAESTRO_INDEPENDENT
        for (std::int64_t j = 0; j < half; ++j) {
            const A lo = static_cast<A>(g[j]), hi = static_cast<A>(g[j + half]);
            v[j] = lo * c[j] + hi * s[j];
            v[j + half] = hi * c[j] - lo * s[j];
        }
        if (norm.rank == 0) {
            for (std::int64_t j = 0; j < h.dim; ++j) out[j] = static_cast<T>(v[j]);
            continue;
        }
        const T* x = t.qkv.as<T>() + row * h.width + head * h.dim;
        const T* w = norm.as<T>();
        const A scale = t.rstd.as<A>()[row * (h.query + h.key) + head];
        A dot = 0;
        for (std::int64_t j = 0; j < h.dim; ++j) dot += v[j] * static_cast<A>(w[j]) * static_cast<A>(x[j]);
        const A shared = dot * scale * scale * scale / static_cast<A>(h.dim);
        for (std::int64_t j = 0; j < h.dim; ++j)
            out[j] = static_cast<T>(v[j] * static_cast<A>(w[j]) * scale - static_cast<A>(x[j]) * shared);
    }
}

/// Adds the gradient of a norm's weights over all rows of heads [first, first + count), whose gradients are
/// in `d_heads`. All heads share these weights, so one thread sums them, row after row and head after head.
template <class T>
void norm_weight_backward(const BackwardTensors& t, const Heads& h, const Tensor& d_heads, const Tensor& dw,
                          std::int64_t first, std::int64_t count) {
    using A = Accumulate<T>;
    const std::int64_t half = h.dim / 2;
    A* sum = dw.as<A>();
    for (std::int64_t row = 0; row < t.qkv.rows(); ++row)
        for (std::int64_t head = first; head < first + count; ++head) {
            const A* c = t.cos.as<A>() + row * half;
            const A* s = t.sin.as<A>() + row * half;
            const T* g = d_heads.as<T>() + (row * count + head - first) * h.dim;
            const T* x = t.qkv.as<T>() + row * h.width + head * h.dim;
            const A scale = t.rstd.as<A>()[row * (h.query + h.key) + head];
            MAESTRO_INDEPENDENT
            for (std::int64_t j = 0; j < half; ++j) {
                const A lo = static_cast<A>(g[j]), hi = static_cast<A>(g[j + half]);
                sum[j] += (lo * c[j] + hi * s[j]) * static_cast<A>(x[j]) * scale;
                sum[j + half] += (hi * c[j] - lo * s[j]) * static_cast<A>(x[j + half]) * scale;
            }
        }
}

}  // namespace

RotaryPairs rotary_1d(std::int64_t dim, double theta) {
    MAESTRO_CHECK(dim > 0 && dim % 2 == 0 && dim <= kMaxHeadDim, "head of {} channels (at most {})", dim,
                  kMaxHeadDim);
    RotaryPairs pairs{.count = static_cast<int>(dim / 2)};
    for (int j = 0; j < pairs.count; ++j)
        pairs.frequency[j] = std::pow(theta, -2.0 * j / static_cast<double>(dim));
    return pairs;
}

RotaryPairs rotary_2d(std::int64_t dim, double theta) {
    MAESTRO_CHECK(dim > 0 && dim % 4 == 0 && dim <= kMaxHeadDim,
                  "2-D rotary positions need a head size that is a multiple of 4, not {}", dim);
    RotaryPairs pairs{.count = static_cast<int>(dim / 2)};
    const int quarter = pairs.count / 2;
    for (int j = 0; j < pairs.count; ++j) {
        pairs.frequency[j] = std::pow(theta, -static_cast<double>(j % quarter) / quarter);
        pairs.axis[j] = j < quarter ? 0 : 1;
    }
    return pairs;
}

RotaryPairs rotary_3d(std::int64_t dim, double theta, const std::array<int, 3>& sections) {
    RotaryPairs pairs = rotary_1d(dim, theta);
    MAESTRO_CHECK(sections[0] + sections[1] + sections[2] == pairs.count,
                  "sections of {}, {} and {} of {} pairs", sections[0], sections[1], sections[2],
                  pairs.count);
    for (int j = 0; j < pairs.count; ++j)
        if (const int axis = j % 3; axis > 0 && j < 3 * sections[static_cast<std::size_t>(axis)])
            pairs.axis[j] = static_cast<std::uint8_t>(axis);
    return pairs;
}

void scale(RotaryPairs& pairs, const RotaryScaling& s) {
    if (s.factor == 1) return;
    for (int j = 0; j < pairs.count; ++j) {
        double& frequency = pairs.frequency[j];
        const double turns = s.original_length * frequency / (2 * std::numbers::pi);
        const double kept = std::clamp(
            (turns - s.low_frequency_factor) / (s.high_frequency_factor - s.low_frequency_factor), 0.0, 1.0);
        frequency = (1 - kept) * frequency / s.factor + kept * frequency;
    }
}

void fill_rotary(backend::Backend& b, std::span<const Tensor> positions, const RotaryPairs& pairs,
                 const Tensor& cos, const Tensor& sin) {
    MAESTRO_CHECK(
        positions.size() <= RotaryPairs::kAxes && cos.columns() == pairs.count && sin.size() == cos.size(),
        "{} axes, {} pairs, {}", positions.size(), pairs.count, cos.describe());
    for (const Tensor& axis : positions)
        MAESTRO_CHECK(axis.size() == cos.rows(), "{} positions for {}", axis.size(), cos.describe());
    for (int j = 0; j < pairs.count; ++j)
        MAESTRO_CHECK(pairs.axis[j] < positions.size(), "axis {} of {}", pairs.axis[j], positions.size());
    b.launch(
        {0, 2.0 * static_cast<double>(cos.bytes())},
        [&] {
            const auto fill = [&]<class A>(A) {
                for (std::int64_t t = 0; t < cos.rows(); ++t)
                    for (int j = 0; j < pairs.count; ++j) {
                        // In double: in fp32, angles of the fast pairs would be off by 0.001 at position
                        // 30,000.
                        const double angle =
                            positions[pairs.axis[j]].as<std::int32_t>()[t] * pairs.frequency[j];
                        cos.as<A>()[t * pairs.count + j] = static_cast<A>(std::cos(angle));
                        sin.as<A>()[t * pairs.count + j] = static_cast<A>(std::sin(angle));
                    }
            };
            if (cos.dtype == DType::f64)
                fill(double{});
            else
                fill(float{});
        },
        [&](Stream stream) {
            const std::vector<kernels::Array> of_axes(positions.begin(), positions.end());
            kernels::fill_rotary(stream, of_axes, pairs, cos, sin);
        });
}

void head_norm_rotary(backend::Backend& b, const Tensor& qkv, const Tensor& q_norm, const Tensor& k_norm,
                      const Tensor& cos, const Tensor& sin, const Tensor& q, const Tensor& k,
                      const Tensor& rstd, double eps) {
    const Heads h = heads(qkv, cos, q, k);
    b.launch(
        {10.0 * static_cast<double>(q.size() + k.size()), 2.0 * static_cast<double>(q.bytes() + k.bytes())},
        [&] {
            by_type(qkv.dtype, [&]<class T>(T) {
                using A = Accumulate<T>;
                const std::int64_t half = h.dim / 2;
                parallel_for(qkv.rows(), (h.query + h.key) * h.dim * 4, [&](std::int64_t t) {
                    const A* c = cos.as<A>() + t * half;
                    const A* s = sin.as<A>() + t * half;
                    for (std::int64_t head = 0; head < h.query + h.key; ++head) {
                        const bool query = head < h.query;
                        const Tensor& norm = query ? q_norm : k_norm;
                        const T* x = qkv.as<T>() + t * h.width + head * h.dim;
                        T* y = query ? q.as<T>() + (t * h.query + head) * h.dim
                                     : k.as<T>() + (t * h.key + head - h.query) * h.dim;
                        std::array<A, kMaxHeadDim> v;
                        for (std::int64_t j = 0; j < h.dim; ++j) v[j] = static_cast<A>(x[j]);
                        if (norm.rank != 0) {
                            A sum = 0;
                            for (std::int64_t j = 0; j < h.dim; ++j) sum += v[j] * v[j];
                            const A scale =
                                A(1) / std::sqrt(sum / static_cast<A>(h.dim) + static_cast<A>(eps));
                            rstd.as<A>()[t * (h.query + h.key) + head] = scale;
                            const T* w = norm.as<T>();
                            for (std::int64_t j = 0; j < h.dim; ++j) v[j] *= scale * static_cast<A>(w[j]);
                        }
                        MAESTRO_INDEPENDENT
                        for (std::int64_t j = 0; j < half; ++j) {
                            const A lo = v[j], hi = v[j + half];
                            y[j] = static_cast<T>(lo * c[j] - hi * s[j]);
                            y[j + half] = static_cast<T>(hi * c[j] + lo * s[j]);
                        }
                    }
                });
            });
        },
        [&](Stream stream) {
            kernels::head_norm_rotary(stream, qkv, q_norm, k_norm, cos, sin, q, k, rstd, eps);
        });
}

void head_norm_rotary_backward(backend::Backend& b, const Tensor& dq, const Tensor& dk, const Tensor& qkv,
                               const Tensor& q_norm, const Tensor& k_norm, const Tensor& cos,
                               const Tensor& sin, const Tensor& rstd, const Tensor& dqkv,
                               const Tensor& dq_norm, const Tensor& dk_norm, backend::Arena& scratch) {
    const Heads h = heads(qkv, cos, dq, dk);
    MAESTRO_CHECK(dqkv.size() == qkv.size(), "dqkv {} for {}", dqkv.describe(), qkv.describe());
    const backend::ArenaScope scope(scratch);
    const Tensor q_partial = head_partials(b, dq_norm, qkv.rows() * h.query, scratch),
                 k_partial = head_partials(b, dk_norm, qkv.rows() * h.key, scratch);
    const BackwardTensors t{dq, dk, qkv, q_norm, k_norm, cos, sin, rstd, dqkv, dq_norm, dk_norm};
    b.launch(
        {20.0 * static_cast<double>(dq.size() + dk.size()),
         3.0 * static_cast<double>(dq.bytes() + dk.bytes())},
        [&] {
            by_type(qkv.dtype, [&]<class T>(T) {
                parallel_for(h.query + h.key, qkv.rows() * h.dim * 8,
                             [&](std::int64_t head) { head_backward<T>(t, h, head); });
                if (dq_norm.rank != 0) norm_weight_backward<T>(t, h, dq, dq_norm, 0, h.query);
                if (dk_norm.rank != 0) norm_weight_backward<T>(t, h, dk, dk_norm, h.query, h.key);
            });
        },
        [&](Stream stream) {
            kernels::head_norm_rotary_backward(stream, dq, dk, qkv, q_norm, k_norm, cos, sin, rstd, dqkv,
                                               dq_norm, dk_norm, q_partial, k_partial);
        });
}

}  // namespace maestro::ops
