#include "ops/cross_entropy.hpp"

#include <algorithm>
#include <vector>

#include "ops/softmax_row.hpp"

namespace maestro::ops {

double cross_entropy(backend::Backend& b, const Tensor& logits, std::span<const std::int32_t> targets,
                     std::span<const float> weights, double scale) {
    const std::int64_t rows = logits.rows(), vocabulary = logits.columns();
    MAESTRO_CHECK(static_cast<std::size_t>(rows) == targets.size() && weights.size() == targets.size(),
                  "{} targets for {}", targets.size(), logits.describe());
    for (const std::int32_t target : targets)  // here, because no exception leaves a parallel loop
        MAESTRO_CHECK(target < vocabulary, "target {} of a vocabulary of {}", target, vocabulary);
    // A loss a row, summed below in row order: the sum does not depend on the threads. In double, because a
    // step adds up thousands of them and layouts are compared to 1e-5.
    std::vector<double> losses(targets.size(), 0.0);
    b.launch({6.0 * static_cast<double>(logits.size()), 2.0 * static_cast<double>(logits.bytes())}, [&] {
        by_logit_type(logits.dtype, [&]<class A>(A) {
            parallel_for(rows, vocabulary * 8, [&](std::int64_t r) {
                const auto i = static_cast<std::size_t>(r);
                A* row = logits.as<A>() + r * vocabulary;
                const double weight = scale * static_cast<double>(weights[i]);
                if (targets[i] < 0 || weights[i] == 0.0f) {  // the logits become the gradient: none
                    std::fill(row, row + vocabulary, A(0));
                    return;
                }
                const A own = row[targets[i]];
                const SoftmaxSum<A> sum = exponentiate(row, vocabulary, A(1));
                losses[i] = weight * (static_cast<double>(sum.top) + std::log(static_cast<double>(sum.sum)) -
                                      static_cast<double>(own));
                const A factor = static_cast<A>(weight) / sum.sum;
                for (std::int64_t c = 0; c < vocabulary; ++c) row[c] *= factor;
                row[targets[i]] -= static_cast<A>(weight);
            });
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
