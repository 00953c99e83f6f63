// Which samples a step trains on: a fresh permutation of the file every epoch, cut into whole global batches;
// what does not fill one is left out of that epoch, so no step holds a sample twice. A function of (seed,
// step) alone, so ranks, layouts and resumes agree.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace maestro::workload {

class DataOrder {
public:
    /// `samples` in the file, at least `global_batch` of them.
    DataOrder(std::uint64_t seed, std::int64_t samples, std::int64_t global_batch);
    /// Sample ids of `step` (counted from 0); valid until the next call.
    std::span<const std::int64_t> batch(std::int64_t step);

private:
    std::uint64_t seed_;
    std::int64_t samples_;
    std::int64_t global_batch_;
    std::int64_t epoch_ = -1;
    std::vector<std::int64_t> order_;  ///< of epoch_
};

}  // namespace maestro::workload
