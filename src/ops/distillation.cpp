#include "ops/distillation.hpp"

#include <algorithm>
#include <array>

#include "kernels/cross_entropy.hpp"
#include "ops/cross_entropy.hpp"
#include "ops/elementwise.hpp"
#include "ops/softmax_row.hpp"

namespace maestro::ops {

namespace {

/// p, q = exp(factor * p - max_p), exp(factor * q - max_q). Returns their sums and that of p (log p - log q),
/// whose logarithms are those before normalization.
template <class A>
std::array<A, 3> exponentiate_both(A* p, A* q, std::int64_t columns, A factor, A max_p, A max_q) {
    A sum_p = 0, sum_q = 0, cross = 0;
#pragma omp simd reduction(+ : sum_p, sum_q, cross)
    for (std::int64_t c = 0; c < columns; ++c) {
        const A lp = factor * p[c] - max_p, lq = factor * q[c] - max_q;
        const A ep = fast_exp(lp), eq = fast_exp(lq);
        sum_p += ep;
        sum_q += eq;
        cross += ep * (lp - lq);
        p[c] = ep;
        q[c] = eq;
    }
    return {sum_p, sum_q, cross};
}

/// What one row of the KL term works on: teacher p and student q. Values by row are those of the tensors that
/// run_loss_steps() combines over the ranks between the steps.
template <class A>
struct SoftRow {
    A *p, *q;     ///< logits, then exponentials, [columns]
    A* gradient;  ///< of the student's logits, [columns]: the KL term's part is added
    A *max_p, *max_q;
    A *sum_p, *sum_q, *cross;  ///< of exponentials, and of p (log p - log q)
};

/// Step 0: the largest softened logits.
template <class A>
void find_maxima(const SoftRow<A>& r, std::int64_t columns, A factor) {
    A max_p = -std::numeric_limits<A>::infinity(), max_q = max_p;
    for (std::int64_t c = 0; c < columns; ++c) {
        max_p = std::max(max_p, factor * r.p[c]);
        max_q = std::max(max_q, factor * r.q[c]);
    }
    *r.max_p = max_p;
    *r.max_q = max_q;
}

/// Step 1: exponentials and their sums. The logarithms in KL = sum p (log p - log q) are taken from the
/// logits, before these are overwritten.
template <class A>
void sum_exponentials(const SoftRow<A>& r, std::int64_t columns, A factor) {
    *r.sum_p = *r.sum_q = *r.cross = 0;
    for_each_column_block(columns, [&](std::int64_t begin, std::int64_t end) {
        const auto [sum_p, sum_q, cross] =
            exponentiate_both(r.p + begin, r.q + begin, end - begin, factor, *r.max_p, *r.max_q);
        *r.sum_p += sum_p;
        *r.sum_q += sum_q;
        *r.cross += cross;
    });
}

/// Step 2: returns the loss of the KL term, which `weight` multiplies, and adds its gradient.
template <class A>
double add_soft_gradient(const SoftRow<A>& r, std::int64_t columns, double weight, double temperature) {
    const A sum_p = *r.sum_p, sum_q = *r.sum_q, cross = *r.cross;
    const double kl = static_cast<double>(cross) / static_cast<double>(sum_p) -
                      std::log(static_cast<double>(sum_p)) + std::log(static_cast<double>(sum_q));
    // The gradient of the softened KL shrinks with 1 / temperature^2. The factor temperature^2 keeps its
    // weight in the loss independent of the temperature; one power cancels against the derivative of the
    // softened logits.
    const A slope = static_cast<A>(weight * temperature);
    for (std::int64_t c = 0; c < columns; ++c) r.gradient[c] += slope * (r.q[c] / sum_q - r.p[c] / sum_p);
    return weight * temperature * temperature * kl;
}

/// On a GPU: both losses in the same steps. The kernels read all logits before they overwrite any, so that no
/// copy is needed.
void distillation_on_gpu(backend::Backend& b, const Tensor& student, const Tensor& teacher,
                         const Tensor& targets, const Tensor& weights, const Mixture& mixture, double scale,
                         const VocabularyShard& shard, const Tensor& loss, backend::Arena& scratch) {
    const std::int64_t rows = student.rows();
    MAESTRO_CHECK(
        rows == targets.size() && rows == weights.size() && student.columns() == shard.tokens.size(),
        "{} targets for {}", targets.size(), student.describe());
    const backend::ArenaScope scope(scratch);
    const DType statistics = accumulate_type(student.dtype);
    const Tensor losses = scratch.allocate(DType::f64, {2 * rows});
    const Tensor maxima = scratch.allocate(statistics, {2, rows}),
                 local_maxima = scratch.allocate(statistics, {2, rows}),
                 sums = scratch.allocate(statistics, {5, rows});
    run_loss_steps(
        b, {22.0 * static_cast<double>(student.size()), 3.0 * static_cast<double>(student.bytes())}, shard,
        maxima, sums, rows, 0, [](int, std::int64_t) {}, [] {},
        [&](Stream stream, kernels::LossSteps steps) {
            kernels::distillation(stream, steps, student, teacher, targets, weights, mixture, scale,
                                  shard.tokens.begin, maxima, local_maxima, sums, losses);
            if (steps.end()) kernels::sum_losses(stream, losses, loss);
        });
}

}  // namespace

void distillation(backend::Backend& b, const Tensor& student, const Tensor& teacher, const Tensor& targets,
                  const Tensor& weights, const Mixture& mixture, double scale, const VocabularyShard& shard,
                  const Tensor& loss, backend::Arena& scratch) {
    const std::int64_t rows = student.rows(), columns = student.columns();
    MAESTRO_CHECK(teacher.size() == student.size() && teacher.dtype == student.dtype,
                  "student {}, teacher {}", student.describe(), teacher.describe());
    MAESTRO_CHECK(loss.size() == 3, "the sums of a loss of two terms in {}", loss.describe());
    if (!b.shares_memory())
        return distillation_on_gpu(b, student, teacher, targets, weights, mixture, scale, shard, loss,
                                   scratch);
    const backend::ArenaScope scope(scratch);
    if (student.dtype == DType::bf16) {  // as in cross_entropy_rows()
        const Tensor wide_student = scratch.allocate(DType::f32, {rows, columns}),
                     wide_teacher = scratch.allocate(DType::f32, {rows, columns});
        convert(b, student, wide_student);
        convert(b, teacher, wide_teacher);
        distillation(b, wide_student, wide_teacher, targets, weights, mixture, scale, shard, loss, scratch);
        convert(b, wide_student, student);
        return;
    }
    // The cross entropy replaces the student's logits by their gradient, so the KL term works on a copy.
    const Tensor soft = scratch.allocate(student.dtype, {rows, columns});
    copy(b, student, soft);
    const Tensor losses = scratch.allocate(DType::f64, {2 * rows});  // cross entropies, then KL terms
    cross_entropy_rows(b, student, targets, weights, scale * mixture.hard, shard, losses.slice(0, rows), {},
                       scratch);
    const Tensor maxima = scratch.allocate(student.dtype, {2, rows}),
                 sums = scratch.allocate(student.dtype, {3, rows});
    const auto* target = targets.as<std::int32_t>();
    const auto* weight_of = weights.as<float>();
    by_logit_type(student.dtype, [&]<class A>(A) {
        const A factor = static_cast<A>(1 / mixture.temperature);
        const auto step = [&](int which, std::int64_t i) {
            A *row_max = maxima.as<A>() + i, *sum = sums.as<A>() + i;
            const SoftRow<A> row{.p = teacher.as<A>() + i * columns,
                                 .q = soft.as<A>() + i * columns,
                                 .gradient = student.as<A>() + i * columns,
                                 .max_p = row_max,
                                 .max_q = row_max + rows,
                                 .sum_p = sum,
                                 .sum_q = sum + rows,
                                 .cross = sum + 2 * rows};
            double& soft_loss = losses.as<double>()[rows + i];
            if (target[i] < 0 || weight_of[i] == 0.0f) {
                soft_loss = 0;
                if (which == 0) *row.max_p = *row.max_q = 0;
                if (which == 1) *row.sum_p = *row.sum_q = *row.cross = 0;
            } else if (which == 0) {
                find_maxima(row, columns, factor);
            } else if (which == 1) {
                sum_exponentials(row, columns, factor);
            } else {
                const double weight = scale * static_cast<double>(weight_of[i]) * mixture.soft;
                soft_loss = add_soft_gradient(row, columns, weight, mixture.temperature);
            }
        };
        run_loss_steps(
            b, {16.0 * static_cast<double>(student.size()), 4.0 * static_cast<double>(student.bytes())},
            shard, maxima, sums, rows, columns * 16, step, [&] { sum_losses(losses, loss); },
            [](Stream, kernels::LossSteps) {});
    });
}

}  // namespace maestro::ops
