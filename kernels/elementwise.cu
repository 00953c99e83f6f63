#include "kernels/elementwise.hpp"

#include "kernels/device/arithmetic_type.cuh"
#include "kernels/device/for_each.cuh"

namespace maestro::kernels {

namespace {

/// y += x
template <class S, class T>
struct Add {
    const S* x;
    T* y;
    template <int N>
    __device__ void operator()(std::int64_t i) const {
        Accumulate<S> addend[N];
        Accumulate<T> value[N];
        load<S, N>(x + i, addend);
        load<T, N>(y + i, value);
#pragma unroll
        for (int k = 0; k < N; ++k) value[k] += static_cast<Accumulate<T>>(addend[k]);
        store<T, N>(value, y + i);
    }
};

template <class S, class T>
struct Convert {
    const S* source;
    T* target;
    template <int N>
    __device__ void operator()(std::int64_t i) const {
        Accumulate<S> value[N];
        Accumulate<T> cast[N];
        load<S, N>(source + i, value);
#pragma unroll
        for (int k = 0; k < N; ++k) cast[k] = static_cast<Accumulate<T>>(value[k]);
        store<T, N>(cast, target + i);
    }
};

template <class T>
struct Fill {
    T* array;
    T value;
    template <int N>
    __device__ void operator()(std::int64_t i) const {
        T values[N];
#pragma unroll
        for (int k = 0; k < N; ++k) values[k] = value;
        store<T, N>(values, array + i);
    }
};

/// Launches Body<S, T>{source, target} over all elements, for the types S and T of both.
template <template <class, class> class Body>
void launch_pair(Stream stream, const Array& source, const Array& target) {
    by_type(source.dtype, [&]<class S>(S) {
        by_type(target.dtype, [&]<class T>(T) {
            // Vectors of the wider type, so that adjacent threads access adjacent memory on both sides.
            constexpr int kElements = kVectorSize<S> < kVectorSize<T> ? kVectorSize<S> : kVectorSize<T>;
            launch_elementwise<kElements>(stream, Body<S, T>{source.as<S>(), target.as<T>()}, target.size(),
                                          source.as<S>(), target.as<T>());
        });
    });
}

std::size_t bytes(const Array& array) {
    return static_cast<std::size_t>(array.size()) * size_of(array.dtype);
}

void check(cudaError_t found, const char* what) {
    if (found != cudaSuccess)
        throw Error(ExitCode::broken_invariant, std::string(what) + ": " + cudaGetErrorString(found));
}

}  // namespace

void add(Stream stream, const Array& x, const Array& y) {
    launch_pair<Add>(stream, x, y);
}

void convert(Stream stream, const Array& source, const Array& target) {
    launch_pair<Convert>(stream, source, target);
}

void copy(Stream stream, const Array& source, const Array& target) {
    if (bytes(source) == 0) return;
    check(cudaMemcpyAsync(target.data, source.data, bytes(source), cudaMemcpyDeviceToDevice, stream),
          "a device-to-device copy failed to start");
}

void fill(Stream stream, const Array& array, double value) {
    by_arithmetic_type(array.dtype, [&]<class A>(A) {
        launch_elementwise<kVectorSize<A>>(stream, Fill<A>{array.as<A>(), static_cast<A>(value)},
                                           array.size(), array.as<A>());
    });
}

void zero(Stream stream, const Array& array) {
    if (bytes(array) == 0) return;
    check(cudaMemsetAsync(array.data, 0, bytes(array), stream), "a memset failed to start");
}

}  // namespace maestro::kernels
