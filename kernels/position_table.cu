#include "kernels/position_table.hpp"

#include "kernels/device/for_each.cuh"
#include "kernels/device/quotient.cuh"
#include "kernels/device/sorted_rows.cuh"

namespace maestro::kernels {

namespace {

constexpr int kNeighbours = 4;

/// Adds to N elements of a row of x, from element i of x on.
template <class T>
struct Forward {
    const std::int32_t* index;
    const double* weight;
    const T* table;
    T* x;
    std::int64_t columns;
    template <int N>
    __device__ void operator()(std::int64_t i) const {
        using A = Accumulate<T>;
        const std::int64_t row = quotient(i, columns), column = i - row * columns;
        A sum[N] = {}, before[N];
        load<T, N>(x + i, before);
#pragma unroll
        for (int k = 0; k < kNeighbours; ++k) {
            const std::int64_t from = index[row * kNeighbours + k];
            const A factor = static_cast<A>(weight[row * kNeighbours + k]);
            A value[N];
            load<T, N>(table + from * columns + column, value);
#pragma unroll
            for (int n = 0; n < N; ++n) sum[n] += factor * value[n];
        }
#pragma unroll
        for (int n = 0; n < N; ++n) before[n] += sum[n];
        store<T, N>(before, x + i);
    }
};

/// Loads what an index adds to its row of the table.
template <class T>
struct WeightedGradient {
    const T* dy;
    const double* weight;
    std::int64_t columns;
    template <int N>
    __device__ void operator()(std::int64_t item, std::int64_t column, Accumulate<T> (&value)[N]) const {
        using A = Accumulate<T>;
        const A factor = static_cast<A>(weight[item]);
        load<T, N>(dy + item / kNeighbours * columns + column, value);
#pragma unroll
        for (int n = 0; n < N; ++n) value[n] *= factor;
    }
};

}  // namespace

void position_embedding(Stream stream, const Array& index, const Array& weight, const Array& table,
                        const Array& x) {
    by_type(x.dtype, [&]<class T>(T) {
        by_vector_size<T>(
            [&]<int N>() {
                launch_for_each<N>(stream,
                                   Forward<T>{index.as<std::int32_t>(), weight.as<double>(), table.as<T>(),
                                              x.as<T>(), x.columns},
                                   x.size());
            },
            x.columns, table.as<T>(), x.as<T>());
    });
}

void position_embedding_backward(Stream stream, const Array& index, const Array& weight, const Array& dy,
                                 const Array& dtable, const Array& scratch) {
    const std::int64_t items = dy.rows * kNeighbours, columns = dy.columns;
    if (items == 0) return;
    const std::int32_t* const keys = index.as<std::int32_t>();
    const std::int32_t* const order =
        sort_rows(stream, RadixSort(items, dtable.rows), keys, scratch.as<std::int32_t>());
    by_type(dy.dtype, [&]<class T>(T) {
        using A = Accumulate<T>;
        by_vector_size<T>(
            [&]<int N>() {
                add_sorted_rows<N>(stream, keys, order,
                                   WeightedGradient<T>{dy.as<T>(), weight.as<double>(), columns},
                                   dtable.as<A>(), items, columns);
            },
            columns, dy.as<T>(), dtable.as<A>());
    });
}

}  // namespace maestro::kernels
