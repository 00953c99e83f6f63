#include "ops/expert_rows.hpp"

#include <array>

#include "kernels/expert_rows.hpp"
#include "ops/dispatch.hpp"
#include "ops/fast_math.hpp"

namespace maestro::ops {

namespace {

constexpr std::int64_t kColumns = 256;  ///< columns that a row is processed by, with sums on the stack

/// Calls body(begin, count) for the blocks of a row's columns.
template <class Body>
void for_each_stack_block(std::int64_t columns, Body&& body) {
    for (std::int64_t begin = 0; begin < columns; begin += kColumns)
        body(begin, std::min(columns - begin, kColumns));
}

void check_rows(const Tensor& gate_up, const Tensor& weight, const Tensor& y) {
    MAESTRO_CHECK(gate_up.columns() == 2 * y.columns() && gate_up.rows() == y.rows() &&
                      gate_up.dtype == y.dtype && weight.size() == y.rows() &&
                      weight.dtype == accumulate_type(y.dtype),
                  "gate_up {}, weight {}, y {}", gate_up.describe(), weight.describe(), y.describe());
}

}  // namespace

void sum_rows(backend::Backend& b, const Tensor& rows, const Tensor& position, const Tensor& sum,
              bool accumulate) {
    MAESTRO_CHECK(rows.columns() == sum.columns() && rows.dtype == sum.dtype &&
                      position.dtype == DType::i32 && position.rows() == sum.rows(),
                  "rows {}, position {}, sum {}", rows.describe(), position.describe(), sum.describe());
    const std::int64_t columns = sum.columns(), k = position.columns();
    b.launch(
        {static_cast<double>(position.size() * columns),
         static_cast<double>(rows.bytes() + position.bytes()) +
             (accumulate ? 2.0 : 1.0) * static_cast<double>(sum.bytes())},
        [&] {
            const std::int32_t* at = position.as<std::int32_t>();
            for (std::int64_t i = 0; i < position.size(); ++i)
                MAESTRO_CHECK(at[i] < rows.rows(), "row {} of {}", at[i], rows.describe());
            by_type(sum.dtype, [&]<class T>(T) {
                using A = Accumulate<T>;
                const T* in = rows.as<T>();
                T* out = sum.as<T>();
                parallel_for(sum.rows(), columns * (k + 1), [&](std::int64_t r) {
                    for_each_stack_block(columns, [&](std::int64_t begin, std::int64_t count) {
                        std::array<A, kColumns> total{};
                        for (std::int64_t j = 0; j < k; ++j) {
                            if (at[r * k + j] < 0) continue;
                            const T* row = in + at[r * k + j] * columns + begin;
                            for (std::int64_t c = 0; c < count; ++c) total[c] += static_cast<A>(row[c]);
                        }
                        T* to = out + r * columns + begin;
                        for (std::int64_t c = 0; c < count; ++c)
                            to[c] = static_cast<T>(accumulate ? static_cast<A>(to[c]) + total[c] : total[c]);
                    });
                });
            });
        },
        [&](Stream stream) { kernels::sum_rows(stream, rows, position, sum, accumulate); });
}

void weighted_swiglu(backend::Backend& b, const Tensor& gate_up, const Tensor& weight, const Tensor& y) {
    check_rows(gate_up, weight, y);
    const std::int64_t width = y.columns();
    b.launch(
        {9.0 * static_cast<double>(y.size()), 3.0 * static_cast<double>(y.bytes())},
        [&] {
            by_type(y.dtype, [&]<class T>(T) {
                using A = Accumulate<T>;
                const T* in = gate_up.as<T>();
                const A* factors = weight.as<A>();
                T* out = y.as<T>();
                parallel_for(y.rows(), width * 8, [&](std::int64_t r) {
                    const T* gate = in + r * 2 * width;
                    const T* up = gate + width;
                    const A factor = factors[r];
                    T* row = out + r * width;
                    MAESTRO_INDEPENDENT
                    for (std::int64_t c = 0; c < width; ++c) {
                        const A g = static_cast<A>(gate[c]);
                        row[c] = static_cast<T>(factor * (g * sigmoid(g) * static_cast<A>(up[c])));
                    }
                });
            });
        },
        [&](Stream stream) { kernels::weighted_swiglu(stream, gate_up, weight, y); });
}

void weighted_swiglu_backward(backend::Backend& b, const Tensor& dy, const Tensor& gate_up,
                              const Tensor& weight, const Tensor& dgate_up, const Tensor& d_weight) {
    check_rows(gate_up, weight, dy);
    MAESTRO_CHECK(dgate_up.size() == gate_up.size() && dgate_up.dtype == gate_up.dtype &&
                      d_weight.size() == weight.size() && d_weight.dtype == weight.dtype,
                  "gate_up {}, dgate_up {}, weight {}, d_weight {}", gate_up.describe(), dgate_up.describe(),
                  weight.describe(), d_weight.describe());
    const std::int64_t width = dy.columns();
    b.launch(
        {18.0 * static_cast<double>(dy.size()), 5.0 * static_cast<double>(dy.bytes())},
        [&] {
            by_type(dy.dtype, [&]<class T>(T) {
                using A = Accumulate<T>;
                const T *gradients = dy.as<T>(), *in = gate_up.as<T>();
                const A* factors = weight.as<A>();
                T* out = dgate_up.as<T>();
                A* d_factors = d_weight.as<A>();
                parallel_for(dy.rows(), width * 16, [&](std::int64_t r) {
                    const A factor = factors[r];
                    A sum = 0;
                    for_each_stack_block(width, [&](std::int64_t begin, std::int64_t count) {
                        const T* gradient = gradients + r * width + begin;
                        const T* gate = in + r * 2 * width + begin;
                        const T* up = gate + width;
                        T* d_gate = out + r * 2 * width + begin;
                        T* d_up = d_gate + width;
                        std::array<A, kColumns> product;
                        MAESTRO_INDEPENDENT
                        for (std::int64_t c = 0; c < count; ++c) {
                            const A x = static_cast<A>(gate[c]), u = static_cast<A>(up[c]), s = sigmoid(x),
                                    d = static_cast<A>(gradient[c]);
                            product[c] = d * (x * s * u);
                            d_gate[c] = static_cast<T>(factor * d * u * s * (A(1) + x * (A(1) - s)));
                            d_up[c] = static_cast<T>(factor * d * x * s);
                        }
#pragma omp simd reduction(+ : sum)
                        for (std::int64_t c = 0; c < count; ++c) sum += product[c];
                    });
                    d_factors[r] = sum;
                });
            });
        },
        [&](Stream stream) {
            kernels::weighted_swiglu_backward(stream, dy, gate_up, weight, dgate_up, d_weight);
        });
}

}  // namespace maestro::ops
