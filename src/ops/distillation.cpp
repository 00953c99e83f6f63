#include "ops/distillation.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/cross_entropy.hpp"
#include "ops/softmax_row.hpp"

namespace maestro::ops {

double distillation(backend::Backend& b, const Tensor& student, const Tensor& teacher,
                    std::span<const std::int32_t> targets, std::span<const float> weights, double alpha,
                    double temperature, double scale, const VocabularyPart& part, backend::Arena& scratch) {
    const std::int64_t rows = student.rows(), columns = student.columns();
    MAESTRO_CHECK(teacher.size() == student.size() && teacher.dtype == student.dtype,
                  "student {}, teacher {}", student.describe(), teacher.describe());
    backend::ArenaScope scope(scratch);
    // The student's logits again: the hard loss turns the first copy into its gradient.
    const Tensor soft = scratch.allocate(student.dtype, {rows, columns});
    b.launch({0, 2.0 * static_cast<double>(student.bytes())}, [&] {
        if (student.bytes() > 0) std::memcpy(soft.data, student.data, student.bytes());
    });
    double loss = cross_entropy(b, student, targets, weights, scale * (1 - alpha), part, scratch);
    const Tensor tops = scratch.allocate(student.dtype, {2, rows}),  // of teacher and student
        sums = scratch.allocate(student.dtype, {3, rows});  // their exponentials, and p (log p - log q)
    std::vector<double> losses(targets.size(), 0.0);
    by_logit_type(student.dtype, [&]<class A>(A) {
        const A factor = static_cast<A>(1 / temperature);
        const auto step = [&](int which, std::int64_t r) {
            const auto i = static_cast<std::size_t>(r);
            A* top = tops.as<A>() + r;
            A* sum = sums.as<A>() + r;
            if (targets[i] < 0 || weights[i] == 0.0f) {
                if (which == 0) top[0] = top[rows] = 0;
                if (which == 1) sum[0] = sum[rows] = sum[2 * rows] = 0;
                return;
            }
            A* q = soft.as<A>() + r * columns;
            A* p = teacher.as<A>() + r * columns;
            // KL = sum p (log p - log q); the logarithms come from the logits, before they are overwritten.
            if (which == 0) {
                A top_p = -std::numeric_limits<A>::infinity(), top_q = top_p;
                for (std::int64_t c = 0; c < columns; ++c) {
                    top_p = std::max(top_p, factor * p[c]);
                    top_q = std::max(top_q, factor * q[c]);
                }
                top[0] = top_p;
                top[rows] = top_q;
            } else if (which == 1) {
                const A top_p = top[0], top_q = top[rows];
                A sum_p = 0, sum_q = 0, cross = 0;
#pragma omp simd reduction(+ : sum_p, sum_q, cross)
                for (std::int64_t c = 0; c < columns; ++c) {
                    const A lp = factor * p[c] - top_p, lq = factor * q[c] - top_q;
                    const A ep = fast_exp(lp), eq = fast_exp(lq);
                    sum_p += ep;
                    sum_q += eq;
                    cross += ep * (lp - lq);
                    p[c] = ep;
                    q[c] = eq;
                }
                sum[0] = sum_p;
                sum[rows] = sum_q;
                sum[2 * rows] = cross;
            } else {
                const A sum_p = sum[0], sum_q = sum[rows], cross = sum[2 * rows];
                const double kl = static_cast<double>(cross) / static_cast<double>(sum_p) -
                                  std::log(static_cast<double>(sum_p)) + std::log(static_cast<double>(sum_q));
                // The gradient of the softened KL shrinks with 1 / temperature^2; the factor keeps its share
                // of the loss whatever the temperature.
                const double weight = scale * static_cast<double>(weights[i]) * alpha;
                losses[i] = weight * temperature * temperature * kl;
                const A slope = static_cast<A>(weight * temperature);
                A* gradient = student.as<A>() + r * columns;
                for (std::int64_t c = 0; c < columns; ++c)
                    gradient[c] += slope * (q[c] / sum_q - p[c] / sum_p);
            }
        };
        by_row(b, {16.0 * static_cast<double>(student.size()), 4.0 * static_cast<double>(student.bytes())},
               part, rows, columns * 16, 3, step, [&](int after) {
                   if (after == 0)
                       part.combine(tops, Reduction::max);
                   else
                       part.combine(sums, Reduction::sum);
               });
    });
    for (const double each : losses) loss += each;
    return loss;
}

}  // namespace maestro::ops
