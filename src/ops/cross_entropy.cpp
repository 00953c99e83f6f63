#include "ops/cross_entropy.hpp"

#include <algorithm>
#include <vector>

#include "ops/softmax_row.hpp"

namespace maestro::ops {

double cross_entropy(backend::Backend& b, const Tensor& logits, std::span<const std::int32_t> targets,
                     std::span<const float> weights, double scale, const VocabularyPart& part,
                     backend::Arena& scratch) {
    const std::int64_t rows = logits.rows(), columns = logits.columns();
    MAESTRO_CHECK(static_cast<std::size_t>(rows) == targets.size() && weights.size() == targets.size() &&
                      columns == part.tokens.size(),
                  "{} targets for {}", targets.size(), logits.describe());
    for (const std::int32_t target : targets)  // here, because no exception leaves a parallel loop
        MAESTRO_CHECK(part.combine || target < columns, "target {} of a vocabulary of {}", target, columns);
    backend::ArenaScope scope(scratch);
    const Tensor tops = scratch.allocate(logits.dtype, {1, rows}),
                 sums = scratch.allocate(logits.dtype, {2, rows});  // of exponentials; the target's logit
    // A loss a row, summed below in row order: the sum does not depend on the threads. In double, because a
    // step adds up thousands of them and layouts are compared to 1e-5.
    std::vector<double> losses(targets.size(), 0.0);
    const auto counts = [&](std::size_t i) { return targets[i] >= 0 && weights[i] != 0.0f; };
    by_logit_type(logits.dtype, [&]<class A>(A) {
        const auto step = [&](int which, std::int64_t r) {
            const auto i = static_cast<std::size_t>(r);
            A* row = logits.as<A>() + r * columns;
            A *top = tops.as<A>() + r, *sum = sums.as<A>() + r, *own = sum + rows;
            if (which == 0) {
                *top = largest(row, columns, A(1));
                *own = counts(i) && part.has(targets[i]) ? row[targets[i] - part.tokens.begin] : A(0);
            } else if (which == 1) {
                *sum = exponentiate(row, columns, A(1), *top);
            } else if (!counts(i)) {  // the logits become the gradient: none
                std::fill(row, row + columns, A(0));
            } else {
                const double weight = scale * static_cast<double>(weights[i]);
                losses[i] = weight * (static_cast<double>(*top) + std::log(static_cast<double>(*sum)) -
                                      static_cast<double>(*own));
                const A factor = static_cast<A>(weight) / *sum;
                for (std::int64_t c = 0; c < columns; ++c) row[c] *= factor;
                if (part.has(targets[i])) row[targets[i] - part.tokens.begin] -= static_cast<A>(weight);
            }
        };
        by_row(b, {6.0 * static_cast<double>(logits.size()), 2.0 * static_cast<double>(logits.bytes())}, part,
               rows, columns * 8, 3, step, [&](int after) {
                   if (after == 0)
                       part.combine(tops, Reduction::max);
                   else
                       part.combine(sums, Reduction::sum);
               });
    });
    double loss = 0;
    for (const double each : losses) loss += each;
    return loss;
}

void argmax_rows(backend::Backend& b, const Tensor& logits, std::span<std::int32_t> out) {
    MAESTRO_CHECK(static_cast<std::size_t>(logits.rows()) == out.size(), "{} places for {}", out.size(),
                  logits.describe());
    b.launch({static_cast<double>(logits.size()), static_cast<double>(logits.bytes())}, [&] {
        by_logit_type(logits.dtype, [&]<class A>(A) {
            for (std::size_t r = 0; r < out.size(); ++r) {
                const A* row = logits.as<A>() + static_cast<std::int64_t>(r) * logits.columns();
                out[r] = static_cast<std::int32_t>(std::max_element(row, row + logits.columns()) - row);
            }
        });
    });
}

}  // namespace maestro::ops
