// By which angles rotary positions rotate the pairs of channels of a head.
#pragma once

#include <cstdint>

namespace maestro {

/// Pair j rotates by frequency[j] times the position along its axis: a text has one axis, a picture two.
/// Plain arrays, because kernels take it by value.
struct RotaryPairs {
    static constexpr int kMost = 128;  ///< of a head with 256 channels
    static constexpr int kAxes = 3;
    int count = 0;
    double frequency[kMost] = {};
    std::uint8_t axis[kMost] = {};
};

/// How frequencies are changed for sequences that are longer than those of the first training (Llama 3.1, in
/// Hugging Face's configurations rope_type "llama3").
struct RotaryScaling {
    double factor = 1;  ///< slow pairs are divided by it; 1: no scaling
    double low_frequency_factor = 1, high_frequency_factor = 4;
    double original_length = 8192;
    bool operator==(const RotaryScaling&) const = default;
};

}  // namespace maestro
