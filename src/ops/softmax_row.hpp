// Maxima and exponentials of a row of logits, shared by the losses.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/dispatch.hpp"
#include "ops/fast_math.hpp"

namespace maestro::ops {

/// Calls body(A{}) with A = float or double, the types that logits are computed in. Throws
/// Error(broken_invariant) for others.
template <class Body>
void by_logit_type(DType type, Body&& body) {
    MAESTRO_CHECK(type == DType::f32 || type == DType::f64, "logits of {}", name_of(type));
    if (type == DType::f32)
        body(float{});
    else
        body(double{});
}

/// Returns the largest factor * row[c].
template <class A>
A largest(const A* row, std::int64_t columns, A factor) {
    A row_max = -std::numeric_limits<A>::infinity();
#pragma omp simd reduction(max : row_max)
    for (std::int64_t c = 0; c < columns; ++c) row_max = std::max(row_max, factor * row[c]);
    return row_max;
}

/// sums[0] (f64) += the losses of all rows, in the order of rows whatever the number of threads. In double,
/// because a step adds thousands of them and losses of different layouts are compared to 1e-6. Where there
/// are sums[1 + n], losses[n, R] has n terms, and sums[1 + t] += those of term t.
inline void sum_losses(const Tensor& losses, const Tensor& sums) {
    const std::int64_t terms = std::max<std::int64_t>(sums.size() - 1, 1), rows = losses.size() / terms;
    double total = 0;
    for (std::int64_t t = 0; t < terms; ++t) {
        double of_term = 0;
        for (std::int64_t i = t * rows; i < (t + 1) * rows; ++i) {
            total += losses.as<double>()[i];
            of_term += losses.as<double>()[i];
        }
        if (sums.size() > 1) sums.as<double>()[1 + t] += of_term;
    }
    sums.as<double>()[0] += total;
}

/// Calls body(begin, end) for blocks of a row's columns. Summing by blocks keeps the rounding error small: a
/// vocabulary of 200,000 exponentials that is summed in one loop loses two decimal digits.
template <class Body>
void for_each_column_block(std::int64_t columns, Body&& body) {
    constexpr std::int64_t kBlock = 8192;
    for (std::int64_t begin = 0; begin < columns; begin += kBlock)
        body(begin, std::min(columns, begin + kBlock));
}

/// row[c] = exp(factor * row[c] - max). Returns the sum, for a row of one block.
template <class A>
A exponentiate_block(A* row, std::int64_t columns, A factor, A max) {
    A sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t c = 0; c < columns; ++c) {
        row[c] = fast_exp(factor * row[c] - max);
        sum += row[c];
    }
    return sum;
}

/// row[c] = exp(factor * row[c] - max). Returns the sum, for a row of any length.
template <class A>
A exponentiate(A* row, std::int64_t columns, A factor, A max) {
    A total = 0;
    for_each_column_block(columns, [&](std::int64_t begin, std::int64_t end) {
        total += exponentiate_block(row + begin, end - begin, factor, max);
    });
    return total;
}

}  // namespace maestro::ops
