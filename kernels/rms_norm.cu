#include "kernels/rms_norm.hpp"

#include "kernels/device/norm_backward.cuh"

namespace maestro::kernels {

namespace {

/// A block normalizes one row.
template <class T, int N>
__global__ void __launch_bounds__(kNormThreads)
    forward(const T* x, const T* w, T* y, Accumulate<T>* rstd, std::int64_t columns, Accumulate<T> eps) {
    using A = Accumulate<T>;
    const std::int64_t row = blockIdx.x * columns;
    A sum = 0;
    for (std::int64_t c = threadIdx.x * N; c < columns; c += blockDim.x * N) {
        A value[N];
        load<T, N>(x + row + c, value);
#pragma unroll
        for (int i = 0; i < N; ++i) sum += value[i] * value[i];
    }
    sum = block_reduce(sum, Sum{}, A(0), shared_memory<A>());
    const A scale = A(1) / sqrt(sum / static_cast<A>(columns) + eps);
    if (threadIdx.x == 0) rstd[blockIdx.x] = scale;
    for (std::int64_t c = threadIdx.x * N; c < columns; c += blockDim.x * N) {
        A value[N], weight[N];
        load<T, N>(x + row + c, value);
        load<T, N>(w + c, weight);
#pragma unroll
        for (int i = 0; i < N; ++i) value[i] = value[i] * scale * weight[i];
        store<T, N>(value, y + row + c);
    }
}

/// RMSNorm in its backward pass.
template <class A>
struct RmsNorm {
    static constexpr int kSums = 1;  ///< the gradient of the weight
    static constexpr bool kSpareRegisters = true;
    const A* rstd;

    struct Row {
        A scale;
        /// The factor that all elements have in common, because each of them changes the root mean square.
        A shared = 0;

        __device__ void add(A dy, A x, A w) { shared += dy * w * x; }
        __device__ void finish(std::int64_t columns) {
            const A dot = block_reduce(shared, Sum{}, A(0), shared_memory<A>());
            shared = dot * scale * scale * scale / static_cast<A>(columns);
        }
        __device__ A dx(A dy, A x, A w) const { return dy * w * scale - x * shared; }
        __device__ A summand(int /*s*/, A dy, A x) const { return dy * x * scale; }
    };
    __device__ Row row(std::int64_t r) const { return {rstd[r]}; }
};

}  // namespace

void rms_norm(Stream stream, const Array& x, const Array& w, const Array& y, const Array& rstd, double eps) {
    by_type(x.dtype, [&]<class T>(T) {
        using A = Accumulate<T>;
        by_vector_size<T>(
            [&]<int N>() {
                launch(forward<T, N>, x.rows, row_threads(x.columns / N, kNormThreads), kBlockReduceBytes<A>,
                       stream, x.as<T>(), w.as<T>(), y.as<T>(), rstd.as<A>(), x.columns, static_cast<A>(eps));
            },
            x.columns, x.as<T>(), w.as<T>(), y.as<T>());
    });
}

void rms_norm_backward(Stream stream, const Array& dy, const Array& x, const Array& w, const Array& rstd,
                       const Array& dx, const Array& dw, bool accumulate, const Array& partial) {
    by_type(x.dtype, [&]<class T>(T) {
        using A = Accumulate<T>;
        norm_backward<T>(stream, dy, x, w, RmsNorm<A>{rstd.as<A>()}, dx, accumulate, partial);
        if (!dw.absent())
            add_chunk_sums(stream, ChunkSums<A>{partial.as<A>(), x.columns}, fused_row_chunks(x.rows),
                           x.columns, dw.as<A>());
    });
}

}  // namespace maestro::kernels
