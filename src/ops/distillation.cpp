#include "ops/distillation.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/cross_entropy.hpp"
#include "ops/softmax_row.hpp"

namespace maestro::ops {

double distillation(backend::Backend& b, const Tensor& student, const Tensor& teacher,
                    std::span<const std::int32_t> targets, std::span<const float> weights, double alpha,
                    double temperature, double scale, backend::Arena& scratch) {
    const std::int64_t rows = student.rows(), vocabulary = student.columns();
    MAESTRO_CHECK(teacher.size() == student.size() && teacher.dtype == student.dtype,
                  "student {}, teacher {}", student.describe(), teacher.describe());
    backend::ArenaScope scope(scratch);
    // The student's logits again: the hard loss turns the first copy into its gradient.
    const Tensor soft = scratch.allocate(student.dtype, {rows, vocabulary});
    b.launch({0, 2.0 * static_cast<double>(student.bytes())}, [&] {
        if (student.bytes() > 0) std::memcpy(soft.data, student.data, student.bytes());
    });
    double loss = cross_entropy(b, student, targets, weights, scale * (1 - alpha));
    std::vector<double> losses(targets.size(), 0.0);
    b.launch({16.0 * static_cast<double>(student.size()), 4.0 * static_cast<double>(student.bytes())}, [&] {
        by_logit_type(student.dtype, [&]<class A>(A) {
            parallel_for(rows, vocabulary * 16, [&](std::int64_t r) {
                const auto i = static_cast<std::size_t>(r);
                if (targets[i] < 0 || weights[i] == 0.0f) return;
                A* q = soft.as<A>() + r * vocabulary;
                A* p = teacher.as<A>() + r * vocabulary;
                A* gradient = student.as<A>() + r * vocabulary;
                const A factor = static_cast<A>(1 / temperature);
                // KL = sum p (log p - log q); the logarithms come from the logits, before they are
                // overwritten.
                A top_p = -std::numeric_limits<A>::infinity(), top_q = top_p;
                for (std::int64_t c = 0; c < vocabulary; ++c) {
                    top_p = std::max(top_p, factor * p[c]);
                    top_q = std::max(top_q, factor * q[c]);
                }
                A sum_p = 0, sum_q = 0, cross = 0;
#pragma omp simd reduction(+ : sum_p, sum_q, cross)
                for (std::int64_t c = 0; c < vocabulary; ++c) {
                    const A lp = factor * p[c] - top_p, lq = factor * q[c] - top_q;
                    const A ep = fast_exp(lp), eq = fast_exp(lq);
                    sum_p += ep;
                    sum_q += eq;
                    cross += ep * (lp - lq);
                    p[c] = ep;
                    q[c] = eq;
                }
                const double kl = static_cast<double>(cross) / static_cast<double>(sum_p) -
                                  std::log(static_cast<double>(sum_p)) + std::log(static_cast<double>(sum_q));
                // The gradient of the softened KL shrinks with 1 / temperature^2; the factor keeps its share
                // of the loss whatever the temperature.
                const double weight = scale * static_cast<double>(weights[i]) * alpha;
                losses[i] = weight * temperature * temperature * kl;
                const A slope = static_cast<A>(weight * temperature);
                for (std::int64_t c = 0; c < vocabulary; ++c)
                    gradient[c] += slope * (q[c] / sum_q - p[c] / sum_p);
            });
        });
    });
    for (const double each : losses) loss += each;
    return loss;
}

}  // namespace maestro::ops
