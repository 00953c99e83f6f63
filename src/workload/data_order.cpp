#include "workload/data_order.hpp"

#include <fmt/core.h>

#include "base/check.hpp"
#include "base/random.hpp"

namespace maestro::workload {

DataOrder::DataOrder(std::uint64_t seed, std::int64_t samples, std::int64_t global_batch)
    : seed_(seed), samples_(samples), global_batch_(global_batch) {
    MAESTRO_CHECK(global_batch >= 1 && samples >= global_batch, "{} samples, global batch {}", samples,
                  global_batch);
}

std::span<const std::int64_t> DataOrder::batch(std::int64_t step) {
    // Steps mostly follow each other, so that one permutation is kept and computed once an epoch.
    const std::int64_t steps_per_epoch = samples_ / global_batch_;
    if (const std::int64_t epoch = step / steps_per_epoch; epoch != epoch_) {
        epoch_ = epoch;
        order_ = Random(seed_, fmt::format("order/epoch {}", epoch)).permutation(samples_);
    }
    return std::span<const std::int64_t>(order_).subspan(step % steps_per_epoch * global_batch_,
                                                         global_batch_);
}

}  // namespace maestro::workload
