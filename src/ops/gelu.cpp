#include "ops/gelu.hpp"

#include <cmath>

#include "kernels/gelu.hpp"
#include "ops/dispatch.hpp"
#include "ops/fast_math.hpp"

namespace maestro::ops {

namespace {

struct Tanh {
    static constexpr double kFlops = 10, kBackwardFlops = 18;
    static constexpr std::int64_t kWork = 8;  ///< of an element, for parallel_for()
    template <class A>
    static constexpr A kRoot = A(0.7978845608028654);  // sqrt(2 / pi)
    template <class A>
    static constexpr A kCubic = A(0.044715);

    template <class A>
    static A value(A v) {
        return A(0.5) * v * (A(1) + fast_tanh(kRoot<A> * (v + kCubic<A> * v * v * v)));
    }
    template <class A>
    static A derivative(A v) {
        const A t = fast_tanh(kRoot<A> * (v + kCubic<A> * v * v * v));
        const A slope = kRoot<A> * (A(1) + A(3) * kCubic<A> * v * v);
        return A(0.5) * (A(1) + t) + A(0.5) * v * (A(1) - t * t) * slope;
    }
};

/// Phi(x) = erfc(-x / sqrt(2)) / 2, which keeps its relative precision for negative x. The functions are
/// those of the standard library, which are not vectorized.
struct Exact {
    static constexpr double kFlops = 20, kBackwardFlops = 30;
    static constexpr std::int64_t kWork = 30;
    template <class A>
    static constexpr A kRootHalf = A(0.7071067811865476);  // sqrt(1 / 2)
    template <class A>
    static constexpr A kDensity = A(0.3989422804014327);  // 1 / sqrt(2 pi)

    template <class A>
    static A value(A v) {
        return A(0.5) * v * std::erfc(-v * kRootHalf<A>);
    }
    template <class A>
    static A derivative(A v) {
        return A(0.5) * std::erfc(-v * kRootHalf<A>) + v * kDensity<A> * std::exp(A(-0.5) * v * v);
    }
};

/// Calls body(Form{}) with Form = Tanh or Exact.
template <class Body>
void by_form(GeluForm form, Body&& body) {
    if (form == GeluForm::exact)
        body(Exact{});
    else
        body(Tanh{});
}

}  // namespace

void gelu(backend::Backend& b, const Tensor& x, const Tensor& y, GeluForm form) {
    MAESTRO_CHECK(x.size() == y.size(), "x {}, y {}", x.describe(), y.describe());
    by_form(form, [&]<class Form>(Form) {
        b.launch(
            {Form::kFlops * static_cast<double>(x.size()), 2.0 * static_cast<double>(x.bytes())},
            [&] {
                by_type(x.dtype, [&]<class T>(T) {
                    using A = Accumulate<T>;
                    const T* in = x.as<T>();
                    T* out = y.as<T>();
                    const std::int64_t columns = x.columns();
                    parallel_for(x.rows(), columns * Form::kWork, [&](std::int64_t r) {
                        MAESTRO_INDEPENDENT
                        for (std::int64_t c = r * columns; c < (r + 1) * columns; ++c)
                            out[c] = static_cast<T>(Form::template value<A>(static_cast<A>(in[c])));
                    });
                });
            },
            [&](Stream stream) { kernels::gelu(stream, x, y, form == GeluForm::exact); });
    });
}

void gelu_backward(backend::Backend& b, const Tensor& dy, const Tensor& x, const Tensor& dx, GeluForm form) {
    MAESTRO_CHECK(x.size() == dy.size() && dx.size() == x.size(), "dy {}, x {}, dx {}", dy.describe(),
                  x.describe(), dx.describe());
    by_form(form, [&]<class Form>(Form) {
        b.launch(
            {Form::kBackwardFlops * static_cast<double>(x.size()), 3.0 * static_cast<double>(x.bytes())},
            [&] {
                by_type(x.dtype, [&]<class T>(T) {
                    using A = Accumulate<T>;
                    const T* in = x.as<T>();
                    const T* gradient = dy.as<T>();
                    T* out = dx.as<T>();
                    const std::int64_t columns = x.columns();
                    parallel_for(x.rows(), columns * Form::kWork * 3 / 2, [&](std::int64_t r) {
                        MAESTRO_INDEPENDENT
                        for (std::int64_t c = r * columns; c < (r + 1) * columns; ++c)
                            out[c] = static_cast<T>(static_cast<A>(gradient[c]) *
                                                    Form::template derivative<A>(static_cast<A>(in[c])));
                    });
                });
            },
            [&](Stream stream) { kernels::gelu_backward(stream, dy, x, dx, form == GeluForm::exact); });
    });
}

}  // namespace maestro::ops
