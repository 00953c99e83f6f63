#include "kernels/embedding.hpp"

#include "kernels/device/sorted_rows.cuh"

namespace maestro::kernels {

namespace {

/// Loads the gradient of an id.
template <class T>
struct Gradient {
    const T* dy;
    std::int64_t columns;
    template <int N>
    __device__ void operator()(std::int64_t id, std::int64_t column, Accumulate<T> (&value)[N]) const {
        load<T, N>(dy + id * columns + column, value);
    }
};

}  // namespace

void embedding_backward(Stream stream, const Array& ids, const Array& dy, const Array& dtable,
                        const Array& scratch) {
    const std::int64_t rows = dy.rows, columns = dy.columns;
    if (rows == 0) return;
    const std::int32_t* const order =
        sort_rows(stream, RadixSort(rows, dtable.rows), ids.as<std::int32_t>(), scratch.as<std::int32_t>());
    by_type(dy.dtype, [&]<class T>(T) {
        using A = Accumulate<T>;
        by_vector_size<T>(
            [&]<int N>() {
                add_sorted_rows<N>(stream, ids.as<std::int32_t>(), order, Gradient<T>{dy.as<T>(), columns},
                                   dtable.as<A>(), rows, columns);
            },
            columns, dy.as<T>(), dtable.as<A>());
    });
}

}  // namespace maestro::kernels
