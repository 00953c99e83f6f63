// How lists that the host computes reach the device.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/tensor.hpp"

namespace maestro::ops {

/// Returns an i32 tensor of the device with these words. The caller chooses its memory.
using Upload = std::function<Tensor(const std::vector<std::int32_t>& words)>;

}  // namespace maestro::ops
