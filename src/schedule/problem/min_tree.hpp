// MinTree: values that change one at a time, and which of them is the smallest.
#pragma once

#include <bit>
#include <limits>
#include <vector>

namespace maestro::schedule {

/// A tournament tree: changing a value takes time logarithmic in their number, the smallest is known at any
/// time.
class MinTree {
public:
    static constexpr double kNone = std::numeric_limits<double>::infinity();

    /// Starts again with `count` values, all kNone.
    void reset(std::size_t count) {
        leaves_ = std::bit_ceil(count);
        values_.assign(leaves_, kNone);
        winner_.resize(2 * leaves_);
        for (std::size_t n = 2 * leaves_ - 1; n > 0; --n)
            winner_[n] = n >= leaves_ ? n - leaves_ : winner_[2 * n];
    }
    void set(std::size_t index, double value) {
        if (values_[index] == value) return;
        values_[index] = value;
        for (std::size_t n = (leaves_ + index) / 2; n > 0; n /= 2) {
            const std::size_t left = winner_[2 * n], right = winner_[2 * n + 1];
            winner_[n] = values_[right] < values_[left] ? right : left;
        }
    }
    double smallest() const { return values_[smallest_index()]; }
    /// Returns the index of the smallest value; of equal values, the lowest.
    std::size_t smallest_index() const { return winner_[1]; }

private:
    std::size_t leaves_ = 0;
    std::vector<double> values_;
    std::vector<std::size_t> winner_;  ///< [node], index of the smallest value below; the root is node 1
};

}  // namespace maestro::schedule
