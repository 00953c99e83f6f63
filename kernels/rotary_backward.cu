#include "kernels/device/block.cuh"
#include "kernels/device/column_sums.cuh"
#include "kernels/device/heads.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/rotary.hpp"

namespace maestro::kernels {

namespace {

/// The query heads or the key heads.
template <class T>
struct Kind {
    const T *dy, *norm;
    std::int64_t first, count;  ///< range of heads in qkv
};

/// A block handles `chunk` heads, row by row, as many at a time as it has groups of lanes. partial [blocks,
/// dim] receives the block's contribution to the gradient of the norm's weights, unless it is null.
template <class T, int N>
__global__ void __launch_bounds__(kLaneThreads)
    backward(Kind<T> kind, const T* qkv, const Accumulate<T>* cos, const Accumulate<T>* sin,
             const Accumulate<T>* rstd, T* dqkv, Accumulate<T>* partial, Heads h, std::int64_t chunk,
             Lanes lanes) {
    using A = Accumulate<T>;
    const int group = static_cast<int>(threadIdx.x) >> lanes.shift, groups = lanes.rows_of_block();
    const std::int64_t begin = blockIdx.x * chunk, all = h.rows * kind.count, dim = 2 * h.half;
    const std::int64_t end = begin + chunk < all ? begin + chunk : all;
    HeadFragment<A, N> total{};
    for (std::int64_t at = begin; at < end; at += groups) {
        const std::int64_t item = at + group, row = item / kind.count, head = kind.first + item % kind.count;
        const std::int64_t offset = row * h.width + head * dim;
        const bool valid = item < end;
        auto gradient = load_head<T, N>(kind.dy + item * dim, valid, lanes, h.half);
        if (valid) gradient.rotate(cos + row * h.half, sin + row * h.half, true, lanes, h.half);
        if (kind.norm != nullptr) {
            auto value = load_head<T, N>(qkv + offset, valid, lanes, h.half);
            auto weight = load_head<T, N>(kind.norm, valid, lanes, h.half);
            const A scale = valid ? rstd[row * (h.query + h.key) + head] : A(0);
            A dot = 0;
#pragma unroll
            for (int i = 0; i < total.kSize; ++i) {
                total[i] += gradient[i] * value[i] * scale;
                gradient[i] *= weight[i];
                dot += gradient[i] * value[i];
            }
            const A shared = lanes.sum(dot) * scale * scale * scale / static_cast<A>(dim);
#pragma unroll
            for (int i = 0; i < total.kSize; ++i) gradient[i] = gradient[i] * scale - value[i] * shared;
        }
        if (valid) store_head<T, N>(gradient, dqkv + offset, lanes, h.half);
    }
    if (partial == nullptr) return;
    A* const smem = shared_memory<A>();
    total.for_each_piece(lanes, h.half, [&](A(&low)[N], A(&high)[N], int j) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            smem[group * dim + j + i] = low[i];
            smem[group * dim + h.half + j + i] = high[i];
        }
    });
    __syncthreads();
    // The groups are added in their order, so that the sum does not depend on which of them ends first.
    for (int j = static_cast<int>(threadIdx.x); j < dim; j += kLaneThreads) {
        A sum = 0;
        for (int g = 0; g < groups; ++g) sum += smem[g * dim + j];
        partial[blockIdx.x * dim + j] = sum;
    }
}

/// dnorm: null where the gradient of the norm's weights is not needed.
template <class T, int N>
void launch_backward(Stream stream, const Kind<T>& kind, const T* qkv, const Accumulate<T>* cos,
                     const Accumulate<T>* sin, const Accumulate<T>* rstd, T* dqkv, const Heads& h,
                     Accumulate<T>* dnorm, Accumulate<T>* partial) {
    using A = Accumulate<T>;
    const bool sums = dnorm != nullptr;
    const Lanes lanes = lanes_for(divide_up(h.half, N), kWarp);
    const std::int64_t all = h.rows * kind.count, dim = 2 * h.half, groups = lanes.rows_of_block();
    const std::int64_t chunks = sums ? head_chunks(all) : divide_up(all, groups);
    if (chunks == 0) return;
    launch(backward<T, N>, chunks, kLaneThreads,
           sums ? static_cast<std::size_t>(groups * dim) * sizeof(A) : 0, stream, kind, qkv, cos, sin, rstd,
           dqkv, sums ? partial : nullptr, h, divide_up(all, chunks), lanes);
    const std::int64_t larger = row_chunks(chunks);
    if (sums)
        add_chunk_sums(stream, NestedChunkSums<A>{partial, chunks, dim, divide_up(chunks, larger)}, larger,
                       dim, dnorm);
}

}  // namespace

void head_norm_rotary_backward(Stream stream, const Array& dq, const Array& dk, const Array& qkv,
                               const Array& q_norm, const Array& k_norm, const Array& cos, const Array& sin,
                               const Array& rstd, const Array& dqkv, const Array& dq_norm,
                               const Array& dk_norm, const Array& q_partial, const Array& k_partial) {
    const Heads h = heads(qkv, cos, dq, dk);
    by_type(qkv.dtype, [&]<class T>(T) {
        using A = Accumulate<T>;
        by_vector_size<T>(
            [&]<int N>() {
                const auto run_kind = [&](const Kind<T>& kind, const Array& dnorm, const Array& partial) {
                    launch_backward<T, N>(stream, kind, qkv.as<T>(), cos.as<A>(), sin.as<A>(), rstd.as<A>(),
                                          dqkv.as<T>(), h, dnorm.as<A>(), partial.as<A>());
                };
                run_kind({dq.as<T>(), q_norm.as<T>(), 0, h.query}, dq_norm, q_partial);
                run_kind({dk.as<T>(), k_norm.as<T>(), h.query, h.key}, dk_norm, k_partial);
            },
            h.half, dq.as<T>(), dk.as<T>(), qkv.as<T>(), q_norm.as<T>(), k_norm.as<T>(), cos.as<A>(),
            sin.as<A>(), dqkv.as<T>());
    });
}

}  // namespace maestro::kernels
