#include "kernels/adamw.hpp"

#include "kernels/device/block.cuh"
#include "kernels/device/flat.cuh"

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
            m[k] = f.beta1 * m[k] + f.rest1 * x;
            v[k] = f.beta2 * v[k] + f.rest2 * x * x;
            w[k] = w[k] * f.keep - f.rate * m[k] / (sqrtf(v[k]) * f.root + f.eps);
        }
        store<float, N>(m, first + i);
        store<float, N>(v, second + i);
        store<float, N>(w, weights + i);
    }
};

constexpr int kChunkThreads = 256, kLastThreads = 512;

/// A block takes a chunk: from the element `head`, modulo N, on N at a time, what is before and behind one by
/// one. Head N: there is no such place.
template <int N>
__global__ void __launch_bounds__(kChunkThreads)
    update_chunks(Update update, const UpdateChunk* chunks, int head) {
    const UpdateChunk chunk = chunks[blockIdx.x];
    if (chunk.decays == 0) update.f.keep = 1;
    const int thread = static_cast<int>(threadIdx.x);
    const int before = head == N ? chunk.size : static_cast<int>((head - chunk.begin % N + N) % N);
    const int first = before < chunk.size ? before : chunk.size, packs = (chunk.size - first) / N;
    for (int i = thread; i < packs; i += kChunkThreads)
        update.template operator()<N>(chunk.begin + first + i * N);
    const int rest = chunk.size - packs * N;
    for (int i = thread; i < rest; i += kChunkThreads)
        update.template operator()<1>(chunk.begin + (i < first ? i : packs * N + i));
}

/// A block takes a chunk. Threads take the same elements in the same order wherever these lie in memory, so
/// that the sum depends on their number alone; `aligned` to 16 bytes they are read faster.
template <class T, bool aligned>
__global__ void __launch_bounds__(kChunkThreads)
    sum_squares(const T* values, std::int64_t size, std::int64_t chunk, double* partial) {
    constexpr int N = kPack<T>;
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
    sum = over_block(sum, Sum{}, 0.0, shared_memory<double>());
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

/// One block.
__global__ void __launch_bounds__(kLastThreads) add_sums(const double* partial, int count, double* to) {
    double sum = 0;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kLastThreads) sum += partial[i];
    sum = over_block(sum, Sum{}, 0.0, shared_memory<double>());
    if (threadIdx.x == 0) *to += sum;
}

}  // namespace

void adamw(Stream stream, const Array& weights, const Array& gradient, const Array& first,
           const Array& second, const Array& chunks, const AdamWFactors& factors) {
    auto *const w = weights.as<float>(), *const g = gradient.as<float>(), *const m = first.as<float>(),
                *const v = second.as<float>();
    constexpr int N = kPack<float>;
    const std::int64_t head = first_word<N>(w, g, m, v);
    launch(update_chunks<N>, chunks.rows, kChunkThreads, 0, stream, Update{w, g, m, v, factors},
           chunks.as<UpdateChunk>(), head < 0 ? N : static_cast<int>(head));
}

void add_squares(Stream stream, const Array& values, const Array& sum, const Array& partial) {
    const std::int64_t chunks = square_chunks(values.size()), chunk = square_chunk(values.size());
    if (chunks == 0) return;
    by_type(values.dtype, [&]<class T>(T) {
        const T* const from = values.as<T>();
        launch(packs<T>(0, from) ? sum_squares<T, true> : sum_squares<T, false>, chunks, kChunkThreads,
               kBlockRoom<double>, stream, from, values.size(), chunk, partial.as<double>());
    });
    launch(add_sums, 1, kLastThreads, kBlockRoom<double>, stream, partial.as<double>(),
           static_cast<int>(chunks), sum.as<double>());
}

}  // namespace maestro::kernels
