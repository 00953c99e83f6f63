#include "kernels/expert_rows.hpp"

#include "kernels/device/block.cuh"
#include "kernels/device/for_each.cuh"
#include "kernels/device/quotient.cuh"
#include "kernels/device/sigmoid.cuh"

namespace maestro::kernels {

namespace {

constexpr int kRowThreads = 512;

/// N elements of a row of the sum, from element i of the sum on.
template <class T>
struct SumOfRows {
    const T* rows;
    const std::int32_t* position;
    T* sum;
    std::int64_t columns, k;
    bool accumulate;
    template <int N>
    __device__ void operator()(std::int64_t i) const {
        const std::int64_t row = quotient(i, columns), column = i - row * columns;
        Accumulate<T> total[N] = {};
#pragma unroll 4
        for (std::int64_t j = 0; j < k; ++j) {
            const std::int64_t from = position[row * k + j];
            if (from < 0) continue;
            Accumulate<T> value[N];
            load<T, N>(rows + from * columns + column, value);
#pragma unroll
            for (int n = 0; n < N; ++n) total[n] += value[n];
        }
        if (accumulate) {
            Accumulate<T> before[N];
            load<T, N>(sum + i, before);
#pragma unroll
            for (int n = 0; n < N; ++n) total[n] += before[n];
        }
        store<T, N>(total, sum + i);
    }
};

template <class T>
struct WeightedSwiglu {
    const T* gate_up;
    const Accumulate<T>* weight;
    T* y;
    std::int64_t width;
    template <int N>
    __device__ void operator()(std::int64_t i) const {
        const std::int64_t row = quotient(i, width);
        const T* const at = gate_up + i + row * width;
        const Accumulate<T> factor = weight[row];
        Accumulate<T> gate[N], up[N];
        load<T, N>(at, gate);
        load<T, N>(at + width, up);
#pragma unroll
        for (int n = 0; n < N; ++n) up[n] = factor * (gate[n] * sigmoid(gate[n]) * up[n]);
        store<T, N>(up, y + i);
    }
};

/// A block processes one row.
template <class T, int N>
__global__ void __launch_bounds__(kRowThreads)
    swiglu_backward(const T* dy, const T* gate_up, const Accumulate<T>* weight, T* dgate_up,
                    Accumulate<T>* d_weight, std::int64_t width) {
    using A = Accumulate<T>;
    const std::int64_t row = blockIdx.x;
    dy += row * width;
    gate_up += row * 2 * width;
    dgate_up += row * 2 * width;
    const A factor = weight[row];
    A sum = 0;
    for (std::int64_t c = threadIdx.x * N; c < width; c += blockDim.x * N) {
        A gradient[N], gate[N], up[N];
        load<T, N>(dy + c, gradient);
        load<T, N>(gate_up + c, gate);
        load<T, N>(gate_up + width + c, up);
#pragma unroll
        for (int n = 0; n < N; ++n) {
            const A x = gate[n], s = sigmoid(x), d = factor * gradient[n];
            sum += gradient[n] * (x * s * up[n]);
            gate[n] = d * up[n] * s * (A(1) + x * (A(1) - s));
            up[n] = d * x * s;
        }
        store<T, N>(gate, dgate_up + c);
        store<T, N>(up, dgate_up + width + c);
    }
    sum = block_reduce(sum, Sum{}, A(0), shared_memory<A>());
    if (threadIdx.x == 0) d_weight[row] = sum;
}

}  // namespace

void sum_rows(Stream stream, const Array& rows, const Array& position, const Array& sum, bool accumulate) {
    by_type(sum.dtype, [&]<class T>(T) {
        by_vector_size<T>(
            [&]<int N>() {
                launch_for_each<N>(stream,
                                   SumOfRows<T>{rows.as<T>(), position.as<std::int32_t>(), sum.as<T>(),
                                                sum.columns, position.columns, accumulate},
                                   sum.size());
            },
            sum.columns, rows.as<T>(), sum.as<T>());
    });
}

void weighted_swiglu(Stream stream, const Array& gate_up, const Array& weight, const Array& y) {
    by_type(y.dtype, [&]<class T>(T) {
        using A = Accumulate<T>;
        by_vector_size<T>(
            [&]<int N>() {
                launch_for_each<N>(stream,
                                   WeightedSwiglu<T>{gate_up.as<T>(), weight.as<A>(), y.as<T>(), y.columns},
                                   y.size());
            },
            y.columns, gate_up.as<T>(), y.as<T>());
    });
}

void weighted_swiglu_backward(Stream stream, const Array& dy, const Array& gate_up, const Array& weight,
                              const Array& dgate_up, const Array& d_weight) {
    by_type(dy.dtype, [&]<class T>(T) {
        using A = Accumulate<T>;
        by_vector_size<T>(
            [&]<int N>() {
                launch(swiglu_backward<T, N>, dy.rows, row_threads(dy.columns / N, kRowThreads),
                       kBlockReduceBytes<A>, stream, dy.as<T>(), gate_up.as<T>(), weight.as<A>(),
                       dgate_up.as<T>(), d_weight.as<A>(), dy.columns);
            },
            dy.columns, dy.as<T>(), gate_up.as<T>(), dgate_up.as<T>());
    });
}

}  // namespace maestro::kernels
