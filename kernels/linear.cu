#include "kernels/linear.hpp"

#include "kernels/device/column_sums.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/vector_access.cuh"

namespace maestro::kernels {

namespace {

/// y += bias, by row. A block handles one row.
template <class T, int N>
__global__ void __launch_bounds__(512) add(const T* bias, T* y, std::int64_t columns) {
    T* const row = y + blockIdx.x * columns;
    for (std::int64_t c = threadIdx.x * N; c < columns; c += blockDim.x * N) {
        Accumulate<T> value[N], addend[N];
        load<T, N>(row + c, value);
        load<T, N>(bias + c, addend);
#pragma unroll
        for (int i = 0; i < N; ++i) value[i] += addend[i];
        store<T, N>(value, row + c);
    }
}

/// An element of a matrix, for add_column_sums().
template <class T>
struct Element {
    const T* values;
    std::int64_t columns;
    __device__ Accumulate<T> operator()(std::int64_t row, std::int64_t column) const {
        return widen(values[row * columns + column]);
    }
};

}  // namespace

void add_bias(Stream stream, const Array& bias, const Array& y) {
    by_type(y.dtype, [&]<class T>(T) {
        by_vector_size<T>(
            [&]<int N>() {
                launch(add<T, N>, y.rows, row_threads(y.columns / N), 0, stream, bias.as<T>(), y.as<T>(),
                       y.columns);
            },
            y.columns, bias.as<T>(), y.as<T>());
    });
}

void bias_backward(Stream stream, const Array& dy, const Array& dbias, const Array& partial) {
    by_type(dy.dtype, [&]<class T>(T) {
        using A = Accumulate<T>;
        add_column_sums(stream, Element<T>{dy.as<T>(), dy.columns}, dy.rows, dy.columns, partial.as<A>(),
                        dbias.as<A>());
    });
}

}  // namespace maestro::kernels
