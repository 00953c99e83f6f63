#include "kernels/gelu.hpp"

#include "kernels/device/for_each.cuh"
#include "kernels/device/sigmoid.cuh"

namespace maestro::kernels {

namespace {

// The tanh approximation of GELU. (1 + tanh(u)) / 2 = sigmoid(2u), hence the factor 2 in front of the root.
template <class A>
constexpr A kTwiceRoot = A(2 * 0.7978845608028654);  // 2 sqrt(2 / pi)
template <class A>
constexpr A kCubic = A(0.044715);

template <class A>
__device__ __forceinline__ A gate(A x) {
    return sigmoid(kTwiceRoot<A> * (x + kCubic<A> * x * x * x));
}

template <class T>
struct Forward {
    const T* x;
    T* y;
    template <int N>
    __device__ void operator()(std::int64_t i) const {
        Accumulate<T> value[N];
        load<T, N>(x + i, value);
#pragma unroll
        for (int k = 0; k < N; ++k) value[k] *= gate(value[k]);
        store<T, N>(value, y + i);
    }
};

template <class T>
struct Backward {
    const T *dy, *x;
    T* dx;
    template <int N>
    __device__ void operator()(std::int64_t i) const {
        using A = Accumulate<T>;
        A value[N], gradient[N];
        load<T, N>(x + i, value);
        load<T, N>(dy + i, gradient);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const A v = value[k], s = gate(v);
            const A slope = kTwiceRoot<A> * (A(1) + A(3) * kCubic<A> * v * v);
            gradient[k] *= s + v * s * (A(1) - s) * slope;
        }
        store<T, N>(gradient, dx + i);
    }
};

}  // namespace

void gelu(Stream stream, const Array& x, const Array& y) {
    by_type(x.dtype, [&]<class T>(T) {
        launch_elementwise<kVectorSize<T>>(stream, Forward<T>{x.as<T>(), y.as<T>()}, x.size(), x.as<T>(),
                                           y.as<T>());
    });
}

void gelu_backward(Stream stream, const Array& dy, const Array& x, const Array& dx) {
    by_type(x.dtype, [&]<class T>(T) {
        launch_elementwise<kVectorSize<T>>(stream, Backward<T>{dy.as<T>(), x.as<T>(), dx.as<T>()}, x.size(),
                                           dy.as<T>(), x.as<T>(), dx.as<T>());
    });
}

}  // namespace maestro::kernels
