#include "ops/adamw.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/dispatch.hpp"

namespace maestro::ops {

namespace {
constexpr std::int64_t kBlock = 1 << 13;  ///< of a fixed size, so that sums do not depend on the threads
}

void adamw(backend::Backend& b, const Tensor& weights, const Tensor& gradient, const Tensor& first,
           const Tensor& second, const AdamW& s) {
    const std::int64_t size = weights.size();
    MAESTRO_CHECK(gradient.size() == size && first.size() == size && second.size() == size,
                  "{} weights, {} gradients", size, gradient.size());
    b.launch({15.0 * static_cast<double>(size), 7.0 * static_cast<double>(weights.bytes())}, [&] {
        float* w = weights.as<float>();
        const float* g = gradient.as<float>();
        float* m = first.as<float>();
        float* v = second.as<float>();
        const double correction1 = 1 - std::pow(s.beta1, static_cast<double>(s.step));
        const double correction2 = 1 - std::pow(s.beta2, static_cast<double>(s.step));
        const auto beta1 = static_cast<float>(s.beta1), beta2 = static_cast<float>(s.beta2);
        const auto rest1 = static_cast<float>(1 - s.beta1), rest2 = static_cast<float>(1 - s.beta2);
        const auto rate = static_cast<float>(s.learning_rate / correction1);
        const auto root = static_cast<float>(1 / std::sqrt(correction2));
        const auto eps = static_cast<float>(s.eps), scale = static_cast<float>(s.gradient_scale);
        const auto keep = static_cast<float>(1 - s.learning_rate * s.weight_decay);
        parallel_for((size + kBlock - 1) / kBlock, kBlock * 8, [&](std::int64_t block) {
            const std::int64_t end = std::min(size, (block + 1) * kBlock);
#pragma omp simd
            for (std::int64_t i = block * kBlock; i < end; ++i) {
                const float x = g[i] * scale;
                m[i] = beta1 * m[i] + rest1 * x;
                v[i] = beta2 * v[i] + rest2 * x * x;
                w[i] = w[i] * keep - rate * m[i] / (std::sqrt(v[i]) * root + eps);
            }
        });
    });
}

double squared_norm(backend::Backend& b, const Tensor& t) {
    const std::int64_t blocks = (t.size() + kBlock - 1) / kBlock;
    std::vector<double> sums(static_cast<std::size_t>(blocks), 0.0);
    b.launch({2.0 * static_cast<double>(t.size()), static_cast<double>(t.bytes())}, [&] {
        by_type(t.dtype, [&]<class T>(T) {
            const T* values = t.as<T>();
            parallel_for(blocks, kBlock * 2, [&](std::int64_t block) {
                const std::int64_t end = std::min(t.size(), (block + 1) * kBlock);
                double sum = 0;
#pragma omp simd reduction(+ : sum)
                for (std::int64_t i = block * kBlock; i < end; ++i)
                    sum += static_cast<double>(static_cast<Accumulate<T>>(values[i])) *
                           static_cast<double>(static_cast<Accumulate<T>>(values[i]));
                sums[block] = sum;
            });
        });
    });
    // In double, because the norm decides on clipping for every rank, and its terms span many magnitudes.
    double total = 0;
    for (const double sum : sums) total += sum;
    return total;
}

}  // namespace maestro::ops
