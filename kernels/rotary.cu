#include "kernels/rotary.hpp"

#include "kernels/device/heads.cuh"
#include "kernels/device/launch.cuh"

namespace maestro::kernels {

namespace {

/// RMS norm of query and key heads (where there are norms), then the rotation. The lanes of one `Lanes` row
/// handle one head.
template <class T, int N>
__global__ void __launch_bounds__(kLaneThreads)
    forward(const T* qkv, const T* q_norm, const T* k_norm, const Accumulate<T>* cos,
            const Accumulate<T>* sin, T* q, T* k, Accumulate<T>* rstd, Heads h, Lanes lanes,
            Accumulate<T> eps) {
    using A = Accumulate<T>;
    const std::int64_t item = lanes.row(), count = h.query + h.key, dim = 2 * h.half;
    const std::int64_t row = item / count, head = item % count;
    const bool valid = row < h.rows, query = head < h.query;
    const T* const norm = query ? q_norm : k_norm;
    auto value = load_head<T, N>(qkv + row * h.width + head * dim, valid, lanes, h.half);
    A sum = 0;
#pragma unroll
    for (int i = 0; i < value.kSize; ++i) sum += value[i] * value[i];
    sum = lanes.sum(sum);  // by all lanes: a warp may hold heads with a norm and heads without
    if (!valid) return;
    if (norm != nullptr) {
        const A scale = A(1) / sqrt(sum / static_cast<A>(dim) + eps);
        if (lanes.lane() == 0) rstd[item] = scale;
        auto weight = load_head<T, N>(norm, true, lanes, h.half);
#pragma unroll
        for (int i = 0; i < value.kSize; ++i) value[i] *= scale * weight[i];
    }
    value.rotate(cos + row * h.half, sin + row * h.half, false, lanes, h.half);
    store_head<T, N>(value,
                     query ? q + (row * h.query + head) * dim : k + (row * h.key + head - h.query) * dim,
                     lanes, h.half);
}

}  // namespace

void head_norm_rotary(Stream stream, const Array& qkv, const Array& q_norm, const Array& k_norm,
                      const Array& cos, const Array& sin, const Array& q, const Array& k, const Array& rstd,
                      double eps) {
    const Heads h = heads(qkv, cos, q, k);
    by_type(qkv.dtype, [&]<class T>(T) {
        using A = Accumulate<T>;
        by_vector_size<T>(
            [&]<int N>() {
                const Lanes lanes = lanes_for(divide_up(h.half, N), kWarp);
                launch(forward<T, N>, lanes.blocks(h.rows * (h.query + h.key)), kLaneThreads, 0, stream,
                       qkv.as<T>(), q_norm.as<T>(), k_norm.as<T>(), cos.as<A>(), sin.as<A>(), q.as<T>(),
                       k.as<T>(), rstd.as<A>(), h, lanes, static_cast<A>(eps));
            },
            h.half, qkv.as<T>(), q_norm.as<T>(), k_norm.as<T>(), cos.as<A>(), sin.as<A>(), q.as<T>(),
            k.as<T>());
    });
}

}  // namespace maestro::kernels
