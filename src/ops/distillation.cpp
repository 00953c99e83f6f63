#include "ops/distillation.hpp"

#include <algorithm>
#include <array>

#include "kernels/cross_entropy.hpp"
#include "kernels/distillation.hpp"
#include "ops/cross_entropy.hpp"
#include "ops/elementwise.hpp"
#include "ops/softmax_row.hpp"

namespace maestro::ops {

namespace {

/// p, q = exp(factor * p - top_p), exp(factor * q - top_q); returns their sums and that of p (log p - log q).
template <class A>
std::array<A, 3> exponentiate_both(A* p, A* q, std::int64_t columns, A factor, A top_p, A top_q) {
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
    return {sum_p, sum_q, cross};
}

/// By kernels, which read all logits before they overwrite any: both losses in the same steps, without a
/// copy.
void distil_by_kernels(backend::Backend& b, const Tensor& student, const Tensor& teacher,
                       const Tensor& targets, const Tensor& weights, double alpha, double temperature,
                       double scale, const VocabularyShard& part, const Tensor& loss,
                       backend::Arena& scratch) {
    const std::int64_t rows = student.rows();
    MAESTRO_CHECK(rows == targets.size() && rows == weights.size() && student.columns() == part.tokens.size(),
                  "{} targets for {}", targets.size(), student.describe());
    const backend::ArenaScope scope(scratch);
    const Tensor losses = scratch.allocate(DType::f64, {2 * rows});
    const Tensor tops = scratch.allocate(student.dtype, {2, rows}),
                 own_tops = scratch.allocate(student.dtype, {2, rows}),
                 sums = scratch.allocate(student.dtype, {5, rows});
    by_row(
        b, {22.0 * static_cast<double>(student.size()), 3.0 * static_cast<double>(student.bytes())}, part,
        tops, sums, rows, 0, [](int, std::int64_t) {}, [] {},
        [&](Stream stream, kernels::LossSteps steps) {
            kernels::distillation(stream, steps, student, teacher, targets, weights, alpha, temperature,
                                  scale, part.tokens.begin, tops, own_tops, sums, losses);
            if (steps.end()) kernels::add_up(stream, losses, loss);
        });
}

}  // namespace

void distillation(backend::Backend& b, const Tensor& student, const Tensor& teacher, const Tensor& targets,
                  const Tensor& weights, double alpha, double temperature, double scale,
                  const VocabularyShard& part, const Tensor& loss, backend::Arena& scratch) {
    const std::int64_t rows = student.rows(), columns = student.columns();
    MAESTRO_CHECK(teacher.size() == student.size() && teacher.dtype == student.dtype,
                  "student {}, teacher {}", student.describe(), teacher.describe());
    if (!b.shares_memory())
        return distil_by_kernels(b, student, teacher, targets, weights, alpha, temperature, scale, part, loss,
                                 scratch);
    backend::ArenaScope scope(scratch);
    // The student's logits again: the hard loss turns the first copy into its gradient.
    const Tensor soft = scratch.allocate(student.dtype, {rows, columns});
    copy(b, student, soft);
    const Tensor losses = scratch.allocate(DType::f64, {2 * rows});  // hard, then soft ones
    cross_entropy_rows(b, student, targets, weights, scale * (1 - alpha), part, losses.slice(0, rows), {},
                       scratch);
    const Tensor tops = scratch.allocate(student.dtype, {2, rows}),  // of teacher and student
        sums = scratch.allocate(student.dtype, {3, rows});  // their exponentials, and p (log p - log q)
    const auto* target = targets.as<std::int32_t>();
    const auto* weight_of = weights.as<float>();
    by_logit_type(student.dtype, [&]<class A>(A) {
        const A factor = static_cast<A>(1 / temperature);
        const auto step = [&](int which, std::int64_t r) {
            A* top = tops.as<A>() + r;
            A* sum = sums.as<A>() + r;
            double& soft_loss = losses.as<double>()[rows + r];
            if (target[r] < 0 || weight_of[r] == 0.0f) {
                soft_loss = 0;
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
                sum[0] = sum[rows] = sum[2 * rows] = 0;
                by_stretches(columns, [&](std::int64_t begin, std::int64_t end) {
                    const auto [sum_p, sum_q, cross] =
                        exponentiate_both(p + begin, q + begin, end - begin, factor, top_p, top_q);
                    sum[0] += sum_p;
                    sum[rows] += sum_q;
                    sum[2 * rows] += cross;
                });
            } else {
                const A sum_p = sum[0], sum_q = sum[rows], cross = sum[2 * rows];
                const double kl = static_cast<double>(cross) / static_cast<double>(sum_p) -
                                  std::log(static_cast<double>(sum_p)) + std::log(static_cast<double>(sum_q));
                // The gradient of the softened KL shrinks with 1 / temperature^2; the factor keeps its share
                // of the loss whatever the temperature.
                const double weight = scale * static_cast<double>(weight_of[r]) * alpha;
                soft_loss = weight * temperature * temperature * kl;
                const A slope = static_cast<A>(weight * temperature);
                A* gradient = student.as<A>() + r * columns;
                for (std::int64_t c = 0; c < columns; ++c)
                    gradient[c] += slope * (q[c] / sum_q - p[c] / sum_p);
            }
        };
        by_row(
            b, {16.0 * static_cast<double>(student.size()), 4.0 * static_cast<double>(student.bytes())}, part,
            tops, sums, rows, columns * 16, step, [&] { add_up(losses, loss); },
            [](Stream, kernels::LossSteps) {});
    });
}

}  // namespace maestro::ops
