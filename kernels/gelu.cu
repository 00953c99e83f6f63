#include "kernels/gelu.hpp"

#include "kernels/device/for_each.cuh"
#include "kernels/device/sigmoid.cuh"

namespace maestro::kernels {

namespace {

// Both forms are x * gate(x), and the derivative of that is gate(x) + x * gate'(x).

template <class A>
constexpr A kTwiceRoot = A(2 * 0.7978845608028654);  // 2 sqrt(2 / pi)
template <class A>
constexpr A kCubic = A(0.044715);

/// The tanh approximation. (1 + tanh(u)) / 2 = sigmoid(2u), hence the factor 2 in front of the root.
struct Tanh {
    template <class A>
    static __device__ __forceinline__ A gate(A x) {
        return sigmoid(kTwiceRoot<A> * (x + kCubic<A> * x * x * x));
    }
    template <class A>
    static __device__ __forceinline__ A derivative(A x) {
        const A s = gate(x), slope = kTwiceRoot<A> * (A(1) + A(3) * kCubic<A> * x * x);
        return s + x * s * (A(1) - s) * slope;
    }
};

/// erfc(-x / sqrt(2)) / 2, the cumulative distribution function of the normal distribution, whose density is
/// exp(-x^2 / 2) / sqrt(2 pi).
struct Exact {
    static constexpr double kRootHalf = 0.7071067811865476, kDensity = 0.3989422804014327;

    static __device__ __forceinline__ float gate(float x) {
        return 0.5f * erfcf(-x * static_cast<float>(kRootHalf));
    }
    static __device__ __forceinline__ double gate(double x) { return 0.5 * erfc(-x * kRootHalf); }
    static __device__ __forceinline__ float derivative(float x) {
        return gate(x) + x * static_cast<float>(kDensity) * expf(-0.5f * x * x);
    }
    static __device__ __forceinline__ double derivative(double x) {
        return gate(x) + x * kDensity * exp(-0.5 * x * x);
    }
};

template <class T, class Form>
struct Forward {
    const T* x;
    T* y;
    template <int N>
    __device__ void operator()(std::int64_t i) const {
        Accumulate<T> value[N];
        load<T, N>(x + i, value);
#pragma unroll
        for (int k = 0; k < N; ++k) value[k] *= Form::gate(value[k]);
        store<T, N>(value, y + i);
    }
};

template <class T, class Form>
struct Backward {
    const T *dy, *x;
    T* dx;
    template <int N>
    __device__ void operator()(std::int64_t i) const {
        Accumulate<T> value[N], gradient[N];
        load<T, N>(x + i, value);
        load<T, N>(dy + i, gradient);
#pragma unroll
        for (int k = 0; k < N; ++k) gradient[k] *= Form::derivative(value[k]);
        store<T, N>(gradient, dx + i);
    }
};

/// Calls body(T{}, Form{}) with T = float, bf16 or double and Form = Tanh or Exact.
template <class Body>
void by_type_and_form(DType type, bool exact, Body&& body) {
    by_type(type, [&]<class T>(T value) {
        if (exact)
            body(value, Exact{});
        else
            body(value, Tanh{});
    });
}

}  // namespace

void gelu(Stream stream, const Array& x, const Array& y, bool exact) {
    by_type_and_form(x.dtype, exact, [&]<class T, class Form>(T, Form) {
        launch_elementwise<kVectorSize<T>>(stream, Forward<T, Form>{x.as<T>(), y.as<T>()}, x.size(),
                                           x.as<T>(), y.as<T>());
    });
}

void gelu_backward(Stream stream, const Array& dy, const Array& x, const Array& dx, bool exact) {
    by_type_and_form(x.dtype, exact, [&]<class T, class Form>(T, Form) {
        launch_elementwise<kVectorSize<T>>(stream, Backward<T, Form>{dy.as<T>(), x.as<T>(), dx.as<T>()},
                                           x.size(), dy.as<T>(), x.as<T>(), dx.as<T>());
    });
}

}  // namespace maestro::kernels
