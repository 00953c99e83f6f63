#include "kernels/layer_norm.hpp"

#include "kernels/device/norm_backward.cuh"

namespace maestro::kernels {

namespace {

/// A block normalizes one row. It reads the row three times, of which caches serve two: for the mean, for the
/// variance around it, and for the result.
template <class T, int N>
__global__ void __launch_bounds__(kNormThreads)
    forward(const T* x, const T* w, const T* bias, T* y, Accumulate<T>* mean, Accumulate<T>* rstd,
            std::int64_t columns, Accumulate<T> eps) {
    using A = Accumulate<T>;
    const std::int64_t row = blockIdx.x * columns;
    A sum = 0;
    for (std::int64_t c = threadIdx.x * N; c < columns; c += blockDim.x * N) {
        A value[N];
        load<T, N>(x + row + c, value);
#pragma unroll
        for (int i = 0; i < N; ++i) sum += value[i];
    }
    sum = block_reduce(sum, Sum{}, A(0), shared_memory<A>());
    const A centre = sum / static_cast<A>(columns);
    A squares = 0;
    for (std::int64_t c = threadIdx.x * N; c < columns; c += blockDim.x * N) {
        A value[N];
        load<T, N>(x + row + c, value);
#pragma unroll
        for (int i = 0; i < N; ++i) squares += (value[i] - centre) * (value[i] - centre);
    }
    squares = block_reduce(squares, Sum{}, A(0), shared_memory<A>());
    const A scale = A(1) / sqrt(squares / static_cast<A>(columns) + eps);
    if (threadIdx.x == 0) {
        mean[blockIdx.x] = centre;
        rstd[blockIdx.x] = scale;
    }
    for (std::int64_t c = threadIdx.x * N; c < columns; c += blockDim.x * N) {
        A value[N], weight[N], shift[N];
        load<T, N>(x + row + c, value);
        load<T, N>(w + c, weight);
        load<T, N>(bias + c, shift);
#pragma unroll
        for (int i = 0; i < N; ++i) value[i] = (value[i] - centre) * scale * weight[i] + shift[i];
        store<T, N>(value, y + row + c);
    }
}

/// LayerNorm in its backward pass, with g = w * dy and the normalized elements n.
template <class A>
struct LayerNorm {
    static constexpr int kSums = 2;  ///< the gradients of weight and bias
    static constexpr bool kSpareRegisters = false;
    const A *mean, *rstd;

    struct Row {
        A centre, scale;
        /// The means of g and of g * n, because each element changes the mean and the variance. Sums until
        /// finish().
        A mean_g = 0, mean_dot = 0;

        __device__ A normalized(A value) const { return (value - centre) * scale; }
        __device__ void add(A dy, A x, A w) {
            const A g = dy * w;
            mean_g += g;
            mean_dot += g * normalized(x);
        }
        __device__ void finish(std::int64_t columns) {
            A* const smem = shared_memory<A>();
            mean_g = block_reduce(mean_g, Sum{}, A(0), smem) / static_cast<A>(columns);
            mean_dot = block_reduce(mean_dot, Sum{}, A(0), smem) / static_cast<A>(columns);
        }
        __device__ A dx(A dy, A x, A w) const {
            const A n = normalized(x);
            return scale * (dy * w - mean_g - n * mean_dot);
        }
        __device__ A summand(int s, A dy, A x) const { return s == 0 ? dy * normalized(x) : dy; }
    };
    __device__ Row row(std::int64_t r) const { return {mean[r], rstd[r]}; }
};

}  // namespace

void layer_norm(Stream stream, const Array& x, const Array& w, const Array& bias, const Array& y,
                const Array& mean, const Array& rstd, double eps) {
    by_type(x.dtype, [&]<class T>(T) {
        using A = Accumulate<T>;
        by_vector_size<T>(
            [&]<int N>() {
                launch(forward<T, N>, x.rows, row_threads(x.columns / N, kNormThreads), kBlockReduceBytes<A>,
                       stream, x.as<T>(), w.as<T>(), bias.as<T>(), y.as<T>(), mean.as<A>(), rstd.as<A>(),
                       x.columns, static_cast<A>(eps));
            },
            x.columns, x.as<T>(), w.as<T>(), bias.as<T>(), y.as<T>());
    });
}

void layer_norm_backward(Stream stream, const Array& dy, const Array& x, const Array& w, const Array& mean,
                         const Array& rstd, const Array& dx, const Array& dw, const Array& dbias,
                         bool accumulate, const Array& partial) {
    const std::int64_t chunks = fused_row_chunks(x.rows);
    by_type(x.dtype, [&]<class T>(T) {
        using A = Accumulate<T>;
        norm_backward<T>(stream, dy, x, w, LayerNorm<A>{mean.as<A>(), rstd.as<A>()}, dx, accumulate, partial);
        if (dw.absent()) return;
        const A* const weight_sums = partial.as<A>();
        const A* const bias_sums = weight_sums + chunks * x.columns;
        add_chunk_sums(stream, ChunkSums<A>{weight_sums, x.columns}, chunks, x.columns, dw.as<A>());
        add_chunk_sums(stream, ChunkSums<A>{bias_sums, x.columns}, chunks, x.columns, dbias.as<A>());
    });
}

}  // namespace maestro::kernels
