#include "ops/cross_entropy.hpp"

#include <algorithm>

#include "kernels/cross_entropy.hpp"
#include "ops/device_scratch.hpp"
#include "ops/elementwise.hpp"
#include "ops/softmax_row.hpp"

namespace maestro::ops {

void cross_entropy(backend::Backend& b, const Tensor& logits, const Tensor& targets, const Tensor& weights,
                   double scale, const VocabularyShard& shard, const Tensor& loss, backend::Arena& scratch) {
    const backend::ArenaScope scope(scratch);
    const Tensor losses = scratch.allocate(DType::f64, {logits.rows()});
    cross_entropy_rows(b, logits, targets, weights, scale, shard, losses, loss, scratch);
}

void cross_entropy_rows(backend::Backend& b, const Tensor& logits, const Tensor& targets,
                        const Tensor& weights, double scale, const VocabularyShard& shard,
                        const Tensor& losses, const Tensor& loss, backend::Arena& scratch) {
    const std::int64_t rows = logits.rows(), columns = logits.columns();
    MAESTRO_CHECK(rows == targets.size() && rows == weights.size() && columns == shard.tokens.size(),
                  "{} targets for {}", targets.size(), logits.describe());
    MAESTRO_CHECK(loss.rank == 0 || loss.size() == 1, "the sum of a loss in {}", loss.describe());
    // Checked here because no exception may leave the parallel loop.
    for (std::int64_t i = 0; b.shares_memory() && i < rows; ++i)
        MAESTRO_CHECK(shard.combine || targets.as<std::int32_t>()[i] < columns,
                      "target {} of a vocabulary of {}", targets.as<std::int32_t>()[i], columns);
    const backend::ArenaScope scope(scratch);
    if (b.shares_memory() && logits.dtype == DType::bf16) {
        // The loops keep exponentials in place, for which bf16 is too narrow. Kernels compute them twice.
        const Tensor wide = scratch.allocate(DType::f32, {rows, columns});
        convert(b, logits, wide);
        cross_entropy_rows(b, wide, targets, weights, scale, shard, losses, loss, scratch);
        convert(b, wide, logits);
        return;
    }
    const DType statistics = accumulate_type(logits.dtype);
    // By row: the largest logit; the sum of exponentials and, in the second row, the target's logit. A target
    // is in one rank's part of the vocabulary and zero elsewhere, so that one sum over the ranks completes
    // both.
    const Tensor maxima = scratch.allocate(statistics, {1, rows}),
                 sums = scratch.allocate(statistics, {2, rows});
    const Tensor local_maxima = device_scratch(b, scratch, statistics, {1, rows});
    const auto* target = targets.as<std::int32_t>();
    const auto* weight_of = weights.as<float>();
    const auto counts = [&](std::int64_t i) { return target[i] >= 0 && weight_of[i] != 0.0f; };
    by_logit_type(statistics, [&]<class A>(A) {
        const auto step = [&](int which, std::int64_t i) {
            A* row = logits.as<A>() + i * columns;
            A *row_max = maxima.as<A>() + i, *sum = sums.as<A>() + i, *target_logit = sum + rows;
            if (which == 0) {
                *row_max = largest(row, columns, A(1));
                *target_logit =
                    counts(i) && shard.has(target[i]) ? row[target[i] - shard.tokens.begin] : A(0);
            } else if (which == 1) {
                *sum = exponentiate(row, columns, A(1), *row_max);
            } else if (!counts(i)) {
                losses.as<double>()[i] = 0;
                std::fill(row, row + columns, A(0));
            } else {
                // The loss is taken in double from the logit itself: the logarithm of a probability that has
                // underflowed to zero would be infinite.
                const double weight = scale * static_cast<double>(weight_of[i]);
                losses.as<double>()[i] =
                    weight * (static_cast<double>(*row_max) + std::log(static_cast<double>(*sum)) -
                              static_cast<double>(*target_logit));
                const A factor = static_cast<A>(weight) / *sum;
                for (std::int64_t c = 0; c < columns; ++c) row[c] *= factor;
                if (shard.has(target[i])) row[target[i] - shard.tokens.begin] -= static_cast<A>(weight);
            }
        };
        run_loss_steps(
            b, {6.0 * static_cast<double>(logits.size()), 2.0 * static_cast<double>(logits.bytes())}, shard,
            maxima, sums, rows, columns * 8, step,
            [&] {
                if (loss.rank != 0) sum_losses(losses, loss);
            },
            [&](Stream stream, kernels::LossSteps steps) {
                kernels::cross_entropy(stream, steps, logits, targets, weights, scale, shard.tokens.begin,
                                       maxima, local_maxima, sums, losses);
                if (steps.end() && loss.rank != 0) kernels::sum_losses(stream, losses, loss);
            });
    });
}

void argmax_rows(backend::Backend& b, const Tensor& logits, const Tensor& ids, const Tensor& values) {
    MAESTRO_CHECK(logits.rows() == ids.size() && logits.rows() == values.size(), "{} ids and {} values of {}",
                  ids.size(), values.size(), logits.describe());
    b.launch(
        {static_cast<double>(logits.size()), static_cast<double>(logits.bytes())},
        [&] {
            by_logit_type(logits.dtype, [&]<class A>(A) {
                for (std::int64_t r = 0; r < ids.size(); ++r) {
                    const A* row = logits.as<A>() + r * logits.columns();
                    const A* best = std::max_element(row, row + logits.columns());
                    ids.as<std::int32_t>()[r] = static_cast<std::int32_t>(best - row);
                    values.as<A>()[r] = *best;
                }
            });
        },
        [&](Stream stream) { kernels::argmax_rows(stream, logits, ids, values); });
}

}  // namespace maestro::ops
