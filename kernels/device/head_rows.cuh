// Rows of one head of a tensor whose heads lie side by side: to shared memory, widened, and back.
#pragma once

#include <cuda_runtime.h>

#include <string>
#include <type_traits>

#include "kernels/array.hpp"
#include "kernels/device/launch.cuh"
#include "kernels/device/number.cuh"

namespace maestro::kernels {

/// Some rows of a head.
template <class T>
struct HeadRows {
    T* first;
    std::int64_t stride;
    int count, dim;
    bool packs;  ///< 16 bytes may be read and written at once
};

/// The last `heads` heads of an array's rows of `width` elements.
template <class T>
struct HeadArray {
    T* data;
    std::int64_t stride;
    int dim;
    bool packs;

    HeadArray(const Array& array, std::int64_t width, std::int64_t heads, std::int64_t dim_)
        : data(array.as<T>() + width - heads * dim_),
          stride(width),
          dim(static_cast<int>(dim_)),
          packs(kernels::packs<std::remove_const_t<T>>(width, data) &&
                dim_ % kPack<std::remove_const_t<T>> == 0) {}
    __device__ HeadRows<T> rows(std::int64_t row, int head, int count) const {
        return {data + row * stride + static_cast<std::int64_t>(head) * dim, stride, count, dim, packs};
    }
};

/// Elements [column, column + kColumns) of the rows [row, row + kRows) to `to`[kRows, kStride], by all
/// threads; zeros where there are none. N as in load().
template <int N, int kRows, int kColumns, int kStride, class A, class T>
__device__ __forceinline__ void fill_by(const HeadRows<const T>& from, int row, int column, A* to) {
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
__device__ __forceinline__ void fill(const HeadRows<const T>& from, int row, int column, A* to) {
    if (from.packs)
        fill_by<kPack<T>, kRows, kColumns, kStride>(from, row, column, to);
    else
        fill_by<1, kRows, kColumns, kStride>(from, row, column, to);
}

/// 16 bytes' worth of arithmetic values to a row from `column`, as far as it goes.
template <class O, class A, int P>
__device__ __forceinline__ void store_piece(const A (&value)[P], const HeadRows<O>& to, int row, int column) {
    O* const at = to.first + row * to.stride + column;
    if (!to.packs) {
#pragma unroll
        for (int e = 0; e < P; ++e)
            if (column + e < to.dim) narrow(value[e], at[e]);
    } else if (column < to.dim) {
        store<O, P>(value, at);
    }
}

/// body(T{}, O{}) with T of the input and O of the result: the same, or what T is summed up in.
template <class Body>
void by_input_and_result(DType input, DType result, Body&& body) {
    by_type(input, [&]<class T>(T type) {
        if (result == input)
            body(type, type);
        else
            body(type, Accumulate<T>{});
    });
}

/// body.operator()<D>() with D = 64, 128 or 256: enough for heads of `dim`.
template <class Body>
void by_head_size(std::int64_t dim, Body&& body) {
    if (dim <= 64)
        body.template operator()<64>();
    else if (dim <= 128)
        body.template operator()<128>();
    else if (dim <= 256)
        body.template operator()<256>();
    else
        throw Error(ExitCode::broken_invariant, "heads of " + std::to_string(dim) + " elements; at most 256");
}

}  // namespace maestro::kernels
