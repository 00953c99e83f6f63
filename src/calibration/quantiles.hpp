// The median and the lower quartile of a few measurements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace maestro::calibration {

/// Of an even number of values the higher of the two in the middle. There must be one at least.
inline double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

/// Returns the value that a quarter of the values are below. There must be one at least. Other programs on
/// the machine lengthen single measurements, and shorten none.
inline double lower_quartile(std::vector<double> values) {
    const auto quarter = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 4);
    std::nth_element(values.begin(), quarter, values.end());
    return *quarter;
}

}  // namespace maestro::calibration
