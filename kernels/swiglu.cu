#include "kernels/swiglu.hpp"

#include "kernels/device/for_each.cuh"
#include "kernels/device/quotient.cuh"
#include "kernels/device/sigmoid.cuh"

namespace maestro::kernels {

namespace {

/// The offset in gate_up [rows, 2 * width] of the gate of element i of y [rows, width]. The element's up
/// value lies `width` further on.
__device__ __forceinline__ std::int64_t gate_of(std::int64_t i, std::int64_t width) {
    return i + quotient(i, width) * width;
}

template <class T>
struct Forward {
    const T* gate_up;
    T* y;
    std::int64_t width;
    template <int N>
    __device__ void operator()(std::int64_t i) const {
        const T* const at = gate_up + gate_of(i, width);
        Accumulate<T> gate[N], up[N];
        load<T, N>(at, gate);
        load<T, N>(at + width, up);
#pragma unroll
        for (int k = 0; k < N; ++k) up[k] *= gate[k] * sigmoid(gate[k]);
        store<T, N>(up, y + i);
    }
};

template <class T>
struct Backward {
    const T *dy, *gate_up;
    T* dgate_up;
    std::int64_t width;
    template <int N>
    __device__ void operator()(std::int64_t i) const {
        using A = Accumulate<T>;
        const std::int64_t at = gate_of(i, width);
        A gradient[N], gate[N], up[N];
        load<T, N>(dy + i, gradient);
        load<T, N>(gate_up + at, gate);
        load<T, N>(gate_up + at + width, up);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const A x = gate[k], s = sigmoid(x);
            gate[k] = gradient[k] * up[k] * s * (A(1) + x * (A(1) - s));
            up[k] = gradient[k] * x * s;
        }
        store<T, N>(gate, dgate_up + at);
        store<T, N>(up, dgate_up + at + width);
    }
};

}  // namespace

void swiglu(Stream stream, const Array& gate_up, const Array& y) {
    by_type(y.dtype, [&]<class T>(T) {
        by_vector_size<T>(
            [&]<int N>() {
                launch_for_each<N>(stream, Forward<T>{gate_up.as<T>(), y.as<T>(), y.columns}, y.size());
            },
            y.columns, gate_up.as<T>(), y.as<T>());
    });
}

void swiglu_backward(Stream stream, const Array& dy, const Array& gate_up, const Array& dgate_up) {
    by_type(dy.dtype, [&]<class T>(T) {
        by_vector_size<T>(
            [&]<int N>() {
                launch_for_each<N>(stream,
                                   Backward<T>{dy.as<T>(), gate_up.as<T>(), dgate_up.as<T>(), dy.columns},
                                   dy.size());
            },
            dy.columns, dy.as<T>(), gate_up.as<T>(), dgate_up.as<T>());
    });
}

}  // namespace maestro::kernels
