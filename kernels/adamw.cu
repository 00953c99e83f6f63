#include "kernels/adamw.hpp"

#include "kernels/device/block.cuh"
#include "kernels/device/for_each.cuh"

namespace maestro::kernels {

namespace {

struct Update {
    float* weights;
    const float* gradient;
    float *first, *second;
    AdamWFactors f;
    template <int N>
    __device__ void operator()(std::int64_t i) const {
        float w[N], g[N], m[N], v[N];
        load<float, N>(weights + i, w);
        load<float, N>(gradient + i, g);
        load<float, N>(first + i, m);
        load<float, N>(second + i, v);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const float x = g[k] * f.scale;
            m[k] = f.beta1 * m[k] + f.one_minus_beta1 * x;
            v[k] = f.beta2 * v[k] + f.one_minus_beta2 * x * x;
            w[k] = w[k] * f.decay - f.step_size * m[k] / (sqrtf(v[k]) * f.root_correction + f.eps);
        }
        store<float, N>(m, first + i);
        store<float, N>(v, second + i);
        store<float, N>(w, weights + i);
    }
};

constexpr int kChunkThreads = 256, kLastThreads = 512;

/// A block updates one chunk. `head`, modulo N, is the first element at which all arrays are aligned to N
/// elements: from there on N elements are processed at a time, and those before and behind one by one. `head`
/// is N where the arrays have no common alignment.
template <int N>
__global__ void __launch_bounds__(kChunkThreads)
    update_chunks(Update update, const UpdateChunk* chunks, int head) {
    const UpdateChunk chunk = chunks[blockIdx.x];
    if (chunk.decays == 0) update.f.decay = 1;
    const int thread = static_cast<int>(threadIdx.x);
    const int before = head == N ? chunk.size : static_cast<int>((head - chunk.begin % N + N) % N);
    const int first = before < chunk.size ? before : chunk.size, vectors = (chunk.size - first) / N;
    for (int i = thread; i < vectors; i += kChunkThreads)
        update.template operator()<N>(chunk.begin + first + i * N);
    const int singles = chunk.size - vectors * N;
    for (int i = thread; i < singles; i += kChunkThreads)
        update.template operator()<1>(chunk.begin + (i < first ? i : vectors * N + i));
}

/// A block sums the squares of one chunk. A thread adds up the same elements in the same order whatever their
/// address, so that the sum does not depend on the alignment. `aligned` to 16 bytes, loads are vectorized.
template <class T, bool aligned>
__global__ void __launch_bounds__(kChunkThreads)
    sum_squares(const T* values, std::int64_t size, std::int64_t chunk, double* partial) {
    constexpr int N = kVectorSize<T>;
    const std::int64_t begin = blockIdx.x * chunk;
    const std::int64_t end = begin + chunk < size ? begin + chunk : size;
    double sum = 0;
#pragma unroll 4
    for (std::int64_t i = begin + threadIdx.x * N; i < end; i += kChunkThreads * N) {
        Accumulate<T> value[N];
        if (aligned && i + N <= end) {
            load<T, N>(values + i, value);
        } else {
#pragma unroll
            for (int k = 0; k < N; ++k) value[k] = i + k < end ? widen(values[i + k]) : Accumulate<T>(0);
        }
#pragma unroll
        for (int k = 0; k < N; ++k) sum += static_cast<double>(value[k]) * static_cast<double>(value[k]);
    }
    sum = block_reduce(sum, Sum{}, 0.0, shared_memory<double>());
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

/// Adds up the partial sums, by one block.
__global__ void __launch_bounds__(kLastThreads) add_sums(const double* partial, int count, double* to) {
    double sum = 0;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kLastThreads) sum += partial[i];
    sum = block_reduce(sum, Sum{}, 0.0, shared_memory<double>());
    if (threadIdx.x == 0) *to += sum;
}

}  // namespace

void adamw(Stream stream, const Array& weights, const Array& gradient, const Array& first,
           const Array& second, const Array& chunks, const AdamWFactors& factors) {
    auto *const w = weights.as<float>(), *const g = gradient.as<float>(), *const m = first.as<float>(),
                *const v = second.as<float>();
    constexpr int N = kVectorSize<float>;
    const std::int64_t head = first_aligned<N>(w, g, m, v);
    launch(update_chunks<N>, chunks.rows, kChunkThreads, 0, stream, Update{w, g, m, v, factors},
           chunks.as<UpdateChunk>(), head < 0 ? N : static_cast<int>(head));
}

void add_squares(Stream stream, const Array& values, const Array& sum, const Array& partial) {
    const std::int64_t chunks = square_chunks(values.size()), chunk = square_chunk(values.size());
    if (chunks == 0) return;
    by_type(values.dtype, [&]<class T>(T) {
        const T* const from = values.as<T>();
        launch(can_vectorize<T>(0, from) ? sum_squares<T, true> : sum_squares<T, false>, chunks,
               kChunkThreads, kBlockReduceBytes<double>, stream, from, values.size(), chunk,
               partial.as<double>());
    });
    launch(add_sums, 1, kLastThreads, kBlockReduceBytes<double>, stream, partial.as<double>(),
           static_cast<int>(chunks), sum.as<double>());
}

}  // namespace maestro::kernels
