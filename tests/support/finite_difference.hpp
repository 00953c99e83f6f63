// Gradients by central differences in double precision, for tests of backward passes.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "support/device.hpp"

namespace maestro::testing_support {

/// Expects that `gradient` equals the central differences of loss() by the elements of x, with an error of at
/// most `tolerance` times the norm of the differences. x and gradient are f64 tensors of the same size.
inline void expect_gradient(backend::Backend& b, const char* what, const Tensor& x, const Tensor& gradient,
                            const std::function<double()>& loss, double tolerance = 1e-7) {
    constexpr double kStep = 1e-5;
    double difference = 0, norm = 0;
    for (std::int64_t i = 0; i < x.size(); ++i) {
        const double kept = read_element(b, x, i);
        write_element(b, x, i, kept + kStep);
        const double above = loss();
        write_element(b, x, i, kept - kStep);
        const double below = loss();
        write_element(b, x, i, kept);
        const double slope = (above - below) / (2 * kStep);
        difference += std::pow(slope - read_element(b, gradient, i), 2);
        norm += slope * slope;
    }
    EXPECT_GT(norm, 1e-8) << what << ": no gradient to compare with";
    EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(norm)) << what;
}

}  // namespace maestro::testing_support
