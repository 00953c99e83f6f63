#include "ops/swiglu.hpp"

#include "kernels/swiglu.hpp"
#include "ops/dispatch.hpp"
#include "ops/fast_math.hpp"

namespace maestro::ops {

void swiglu(backend::Backend& b, const Tensor& gate_up, const Tensor& y) {
    const std::int64_t width = y.columns();
    MAESTRO_CHECK(gate_up.columns() == 2 * width && gate_up.rows() == y.rows(), "gate_up {}, y {}",
                  gate_up.describe(), y.describe());
    b.launch(
        {8.0 * static_cast<double>(y.size()), 3.0 * static_cast<double>(y.bytes())},
        [&] {
            by_type(y.dtype, [&]<class T>(T) {
                using A = Accumulate<T>;
                const T* in = gate_up.as<T>();
                T* out = y.as<T>();
                parallel_for(y.rows(), width * 8, [&](std::int64_t r) {
                    const T* gate = in + r * 2 * width;
                    const T* up = gate + width;
                    T* row = out + r * width;
                    MAESTRO_INDEPENDENT
                    for (std::int64_t c = 0; c < width; ++c) {
                        const A g = static_cast<A>(gate[c]);
                        row[c] = static_cast<T>(g * sigmoid(g) * static_cast<A>(up[c]));
                    }
                });
            });
        },
        [&](Stream stream) { kernels::swiglu(stream, gate_up, y); });
}

void swiglu_backward(backend::Backend& b, const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up) {
    const std::int64_t width = dy.columns();
    MAESTRO_CHECK(gate_up.size() == 2 * dy.size() && dgate_up.size() == gate_up.size(),
                  "dy {}, gate_up {}, dgate_up {}", dy.describe(), gate_up.describe(), dgate_up.describe());
    b.launch(
        {14.0 * static_cast<double>(dy.size()), 5.0 * static_cast<double>(dy.bytes())},
        [&] {
            by_type(dy.dtype, [&]<class T>(T) {
                using A = Accumulate<T>;
                const T* in = gate_up.as<T>();
                const T* gradient = dy.as<T>();
                T* out = dgate_up.as<T>();
                parallel_for(dy.rows(), width * 12, [&](std::int64_t r) {
                    const T* gate = in + r * 2 * width;
                    const T* up = gate + width;
                    const T* g_row = gradient + r * width;
                    T* d_gate = out + r * 2 * width;
                    T* d_up = d_gate + width;
                    MAESTRO_INDEPENDENT
                    for (std::int64_t c = 0; c < width; ++c) {
                        const A x = static_cast<A>(gate[c]);
                        const A s = sigmoid(x);
                        const A d = static_cast<A>(g_row[c]);
                        d_gate[c] = static_cast<T>(d * static_cast<A>(up[c]) * s * (A(1) + x * (A(1) - s)));
                        d_up[c] = static_cast<T>(d * x * s);
                    }
                });
            });
        },
        [&](Stream stream) { kernels::swiglu_backward(stream, dy, gate_up, dgate_up); });
}

}  // namespace maestro::ops
