// LoadHeap: the loads of machines, and the machine with the least.
#pragma once

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

namespace maestro::schedule {

/// Loads of machines as a heap, for list scheduling (Graham, "Bounds on multiprocessing timing anomalies",
/// 1969): of equal loads the machine with the lowest number comes first.
class LoadHeap {
public:
    /// `loads`: [machine], at the start.
    explicit LoadHeap(const std::vector<double>& loads) {
        for (const double load : loads) heap_.emplace_back(load, static_cast<int>(heap_.size()));
        std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
    }
    /// Adds to the least load; returns its machine.
    int add_to_least(double load) {
        std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
        heap_.back().first += load;
        const int machine = heap_.back().second;
        std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
        return machine;
    }
    double largest() const { return std::max_element(heap_.begin(), heap_.end())->first; }

private:
    std::vector<std::pair<double, int>> heap_;  ///< load and number of each machine
};

}  // namespace maestro::schedule
