// Exponential functions that a compiler can vectorise. The float version uses the range reduction and the
// polynomial of the Cephes library, with a relative error of about 1e-7; the double version is the standard
// library's.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace maestro::ops {

inline double fast_exp(double x) {
    return std::exp(x);
}

inline float fast_exp(float x) {
    x = x < -87.0f ? -87.0f
                   : (x > 88.0f ? 88.0f : x);  // beyond, the exponent that is built below would overflow
    const float n = std::nearbyintf(x * 1.44269504f);
    const float r =
        (x - n * 0.693359375f) + n * 2.12194440e-4f;  // x - n ln 2 in two parts: n times the first is exact
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * std::bit_cast<float>((static_cast<std::int32_t>(n) + 127) << 23);
}

template <class A>
inline A sigmoid(A x) {
    return A(1) / (A(1) + fast_exp(-x));
}

/// tanh(x) = 2 sigmoid(2x) - 1.
template <class A>
inline A fast_tanh(A x) {
    return A(2) * sigmoid(A(2) * x) - A(1);
}

}  // namespace maestro::ops
