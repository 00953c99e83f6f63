// What a stage takes for sequences of any length.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

namespace maestro::workload {

/// The cost per token or patch at some lengths, interpolated linearly between them. That is exact for costs
/// that are polynomials of degree two in the length.
struct LengthCost {
    std::vector<double> lengths = {}, forward = {}, backward = {};
    /// Added for each row of an item, by the encoder that reads it (SampleTable::encoders).
    struct OfItem {
        double forward = 0, backward = 0;
    };
    std::vector<OfItem> items = {};
    double lacking_forward = 0, lacking_backward = 0;  ///< see schedule::StageShape
    std::vector<double> common = {};  ///< of forward and backward together, see schedule::TaskCost::common
    /// The cost of n tokens; `each` is `forward`, `backward` or `common`.
    double at(const std::vector<double>& each, double n) const {
        const std::size_t k = after(n);
        if (k == 0) return n * each.front();
        const double share = (n - lengths[k - 1]) / (lengths[k] - lengths[k - 1]);
        return n * (each[k - 1] + share * (each[k] - each[k - 1]));
    }
    /// Multiplies all forwards and backwards; common work by the mean of both.
    void scale(const std::array<double, 2>& factors) {
        for (double& each : forward) each *= factors[0];
        for (double& each : backward) each *= factors[1];
        for (double& each : common) each *= (factors[0] + factors[1]) / 2;
        for (OfItem& item : items) {
            item.forward *= factors[0];
            item.backward *= factors[1];
        }
        lacking_forward *= factors[0];
        lacking_backward *= factors[1];
    }
    /// Returns the length at the end of the interval in which n is interpolated, as an index; 0: there is
    /// none before it.
    std::size_t after(double n) const {
        if (lengths.size() == 1 || n <= lengths.front()) return 0;
        const auto end = std::lower_bound(lengths.begin() + 1, lengths.end() - 1, n);
        return static_cast<std::size_t>(end - lengths.begin());
    }
};

}  // namespace maestro::workload
