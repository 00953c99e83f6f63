// The exponentials of one row of logits, shared by the losses.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/dispatch.hpp"
#include "ops/fast_math.hpp"

namespace maestro::ops {

/// Logits are kept in an arithmetic type: float or double.
template <class Body>
void by_logit_type(DType type, Body&& body) {
    MAESTRO_CHECK(type == DType::f32 || type == DType::f64, "logits of {}", name_of(type));
    if (type == DType::f32)
        body(float{});
    else
        body(double{});
}

/// Largest of factor * row[c].
template <class A>
A largest(const A* row, std::int64_t columns, A factor) {
    A top = -std::numeric_limits<A>::infinity();
#pragma omp simd reduction(max : top)
    for (std::int64_t c = 0; c < columns; ++c) top = std::max(top, factor * row[c]);
    return top;
}

/// sum[1] += the losses of all rows, in row order, whatever the threads. In double, because a step adds up
/// thousands of them and layouts are compared to 1e-5.
inline void add_up(const Tensor& losses, const Tensor& sum) {
    double total = 0;
    for (std::int64_t i = 0; i < losses.size(); ++i) total += losses.as<double>()[i];
    sum.as<double>()[0] += total;
}

/// body(begin, end) for stretches of a row's columns. A sum by stretches keeps its digits where a vocabulary
/// of 200,000 added up in one go would lose two.
template <class Body>
void by_stretches(std::int64_t columns, Body&& body) {
    constexpr std::int64_t kStretch = 8192;
    for (std::int64_t begin = 0; begin < columns; begin += kStretch)
        body(begin, std::min(columns, begin + kStretch));
}

/// row[c] = exp(factor * row[c] - top); returns their sum, added up in one go.
template <class A>
A exponentiate_stretch(A* row, std::int64_t columns, A factor, A top) {
    A sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t c = 0; c < columns; ++c) {
        row[c] = fast_exp(factor * row[c] - top);
        sum += row[c];
    }
    return sum;
}

/// The same for a row of any length.
template <class A>
A exponentiate(A* row, std::int64_t columns, A factor, A top) {
    A total = 0;
    by_stretches(columns, [&](std::int64_t begin, std::int64_t end) {
        total += exponentiate_stretch(row + begin, end - begin, factor, top);
    });
    return total;
}

}  // namespace maestro::ops
