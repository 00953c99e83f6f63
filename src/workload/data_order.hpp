// Which samples a step trains on. Every epoch is a new permutation of the file, cut into whole global
// batches; samples that do not fill one are left out of that epoch, so no step has a sample twice. The order
// is a function of (seed, step) alone, so that it is the same on every rank, in every layout and after a
// resume.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace maestro::workload {

class DataOrder {
public:
    /// `samples` in the file, at least `global_batch` of them.
    DataOrder(std::uint64_t seed, std::int64_t samples, std::int64_t global_batch);
    /// Returns the sample ids of `step`, counted from 0. The span is valid until the next call.
    std::span<const std::int64_t> batch(std::int64_t step);

private:
    std::uint64_t seed_;
    std::int64_t samples_;
    std::int64_t global_batch_;
    std::int64_t epoch_ = -1;
    std::vector<std::int64_t> order_;  ///< of epoch_
};

}  // namespace maestro::workload
