#include "ops/gelu.hpp"

#include "kernels/gelu.hpp"
#include "ops/dispatch.hpp"
#include "ops/fast_math.hpp"

namespace maestro::ops {

namespace {
template <class A>
constexpr A kRoot = A(0.7978845608028654);  // sqrt(2 / pi)
template <class A>
constexpr A kCubic = A(0.044715);
}  // namespace

void gelu(backend::Backend& b, const Tensor& x, const Tensor& y) {
    MAESTRO_CHECK(x.size() == y.size(), "x {}, y {}", x.describe(), y.describe());
    b.launch(
        {10.0 * static_cast<double>(x.size()), 2.0 * static_cast<double>(x.bytes())},
        [&] {
            by_type(x.dtype, [&]<class T>(T) {
                using A = Accumulate<T>;
                const T* in = x.as<T>();
                T* out = y.as<T>();
                const std::int64_t columns = x.columns();
                parallel_for(x.rows(), columns * 8, [&](std::int64_t r) {
                    MAESTRO_INDEPENDENT
                    for (std::int64_t c = r * columns; c < (r + 1) * columns; ++c) {
                        const A v = static_cast<A>(in[c]);
                        out[c] = static_cast<T>(A(0.5) * v *
                                                (A(1) + fast_tanh(kRoot<A> * (v + kCubic<A> * v * v * v))));
                    }
                });
            });
        },
        [&](Stream stream) { kernels::gelu(stream, x, y); });
}

void gelu_backward(backend::Backend& b, const Tensor& dy, const Tensor& x, const Tensor& dx) {
    MAESTRO_CHECK(x.size() == dy.size() && dx.size() == x.size(), "dy {}, x {}, dx {}", dy.describe(),
                  x.describe(), dx.describe());
    b.launch(
        {18.0 * static_cast<double>(x.size()), 3.0 * static_cast<double>(x.bytes())},
        [&] {
            by_type(x.dtype, [&]<class T>(T) {
                using A = Accumulate<T>;
                const T* in = x.as<T>();
                const T* gradient = dy.as<T>();
                T* out = dx.as<T>();
                const std::int64_t columns = x.columns();
                parallel_for(x.rows(), columns * 12, [&](std::int64_t r) {
                    MAESTRO_INDEPENDENT
                    for (std::int64_t c = r * columns; c < (r + 1) * columns; ++c) {
                        const A v = static_cast<A>(in[c]);
                        const A t = fast_tanh(kRoot<A> * (v + kCubic<A> * v * v * v));
                        const A slope = kRoot<A> * (A(1) + A(3) * kCubic<A> * v * v);
                        out[c] = static_cast<T>(static_cast<A>(gradient[c]) *
                                                (A(0.5) * (A(1) + t) + A(0.5) * v * (A(1) - t * t) * slope));
                    }
                });
            });
        },
        [&](Stream stream) { kernels::gelu_backward(stream, dy, x, dx); });
}

}  // namespace maestro::ops
