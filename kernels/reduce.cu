#include "kernels/reduce.hpp"

#include "kernels/device/for_each.cuh"

namespace maestro::kernels {

namespace {

/// Up to this many parts use a kernel with short parameters, which a launch copies quickly.
constexpr std::size_t kFewParts = 64;

/// The maximum, or NaN where either is NaN.
template <class A>
__device__ __forceinline__ A larger(A x, A y) {
    return y > x || y != y ? y : x;
}

template <class T, std::size_t max_parts>
struct Reduce {
    const T* parts[max_parts];
    int count;
    bool sum;
    T* result;
    template <int N>
    __device__ void operator()(std::int64_t i) const {
        Accumulate<T> value[N];
        load<T, N>(parts[0] + i, value);
#pragma unroll 4
        for (int p = 1; p < count; ++p) {
            Accumulate<T> next[N];
            load<T, N>(parts[p] + i, next);
#pragma unroll
            for (int k = 0; k < N; ++k) value[k] = sum ? value[k] + next[k] : larger(value[k], next[k]);
        }
        store<T, N>(value, result + i);
    }
};

template <std::size_t max_parts, class T>
void launch_reduce(Stream stream, std::span<const void* const> parts, bool sum, T* result,
                   std::int64_t size) {
    Reduce<T, max_parts> body{{}, static_cast<int>(parts.size()), sum, result};
    std::int64_t head = first_aligned<kVectorSize<T>>(result);
    for (std::size_t p = 0; p < parts.size(); ++p) {
        body.parts[p] = static_cast<const T*>(parts[p]);
        if (first_aligned<kVectorSize<T>>(body.parts[p]) != head) head = -1;
    }
    if (head < 0)
        launch_for_each<1>(stream, body, size);
    else
        launch_for_each<kVectorSize<T>>(stream, body, size, head < size ? head : size);
}

}  // namespace

void reduce(Stream stream, std::span<const void* const> parts, bool sum, const Array& result) {
    by_type(result.dtype, [&]<class T>(T) {
        if (parts.size() <= kFewParts)
            launch_reduce<kFewParts>(stream, parts, sum, result.as<T>(), result.size());
        else
            launch_reduce<kMaxParts>(stream, parts, sum, result.as<T>(), result.size());
    });
}

}  // namespace maestro::kernels
