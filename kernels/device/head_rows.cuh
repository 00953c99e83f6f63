// Rows of one attention head in a tensor [T, H * D]: loading them to shared memory in the arithmetic type,
// and storing results.
#pragma once

#include <cuda_runtime.h>

#include <string>
#include <type_traits>

#include "kernels/array.hpp"
#include "kernels/device/launch.cuh"
#include "kernels/device/vector_access.cuh"

namespace maestro::kernels {

/// `count` rows of one head.
template <class T>
struct HeadRows {
    T* first;
    std::int64_t stride;
    int count, dim;
    bool vectorized;  ///< rows can be accessed 16 bytes at a time
};

/// The heads in the last heads * dim columns of an array, whose rows have `width` elements.
template <class T>
struct HeadArray {
    T* data;
    std::int64_t stride;
    int dim;
    bool vectorized;

    HeadArray(const Array& array, std::int64_t width, std::int64_t heads, std::int64_t dim_)
        : data(array.as<T>() + width - heads * dim_),
          stride(width),
          dim(static_cast<int>(dim_)),
          vectorized(can_vectorize<std::remove_const_t<T>>(width, data) &&
                     dim_ % kVectorSize<std::remove_const_t<T>> == 0) {}
    __device__ HeadRows<T> rows(std::int64_t row, int head, int count) const {
        return {data + row * stride + static_cast<std::int64_t>(head) * dim, stride, count, dim, vectorized};
    }
};

/// Loads the elements [column, column + kColumns) of the rows [row, row + kRows) to `to`[kRows, kStride], in
/// shared memory. All threads of the block share the work. Elements outside the head's rows or columns become
/// zero. N as for load().
template <int N, int kRows, int kColumns, int kStride, class A, class T>
__device__ __forceinline__ void load_tile_by(const HeadRows<const T>& from, int row, int column, A* to) {
    constexpr int kAcross = kColumns / N;
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kAcross; i += static_cast<int>(blockDim.x)) {
        const int r = i / kAcross, c = i % kAcross * N;
        A value[N] = {};
        if (row + r < from.count && column + c < from.dim)
            load<T, N>(from.first + (row + r) * from.stride + column + c, value);
        store<A, N>(value, to + r * kStride + c);
    }
}

template <int kRows, int kColumns, int kStride, class A, class T>
__device__ __forceinline__ void load_tile(const HeadRows<const T>& from, int row, int column, A* to) {
    if (from.vectorized)
        load_tile_by<kVectorSize<T>, kRows, kColumns, kStride>(from, row, column, to);
    else
        load_tile_by<1, kRows, kColumns, kStride>(from, row, column, to);
}

/// Stores P values to a row from `column` on, as far as the head's columns go.
template <class O, class A, int P>
__device__ __forceinline__ void store_vector(const A (&value)[P], const HeadRows<O>& to, int row,
                                             int column) {
    O* const at = to.first + row * to.stride + column;
    if (!to.vectorized) {
#pragma unroll
        for (int e = 0; e < P; ++e)
            if (column + e < to.dim) narrow(value[e], at[e]);
    } else if (column < to.dim) {
        store<O, P>(value, at);
    }
}

/// Calls body(T{}, O{}) with the types of the input and of the result. The result has the input's type or its
/// accumulation type.
template <class Body>
void by_input_and_result(DType input, DType result, Body&& body) {
    by_type(input, [&]<class T>(T type) {
        if (result == input)
            body(type, type);
        else
            body(type, Accumulate<T>{});
    });
}

/// Calls body.operator()<D>() with the smallest D of 64, 128 and 256 that is at least `dim`.
template <class Body>
void by_head_size(std::int64_t dim, Body&& body) {
    if (dim <= 64)
        body.template operator()<64>();
    else if (dim <= 128)
        body.template operator()<128>();
    else if (dim <= 256)
        body.template operator()<256>();
    else
        throw Error(ExitCode::broken_invariant,
                    "attention heads of " + std::to_string(dim) + " elements; at most 256 are supported");
}

}  // namespace maestro::kernels
