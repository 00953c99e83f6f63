// The units of an encoder without the rest of it.
#pragma once

#include <cstdint>

#include "model/units.hpp"

namespace maestro::testing_support {

/// Patches of `patch` x `patch` pixels, of which `merge` x `merge` become one output row.
inline model::Units encoder_units(int patch, int merge) {
    return model::Units(model::Units::Encoder{.side = patch * merge, .unit = std::int64_t{merge} * merge});
}

}  // namespace maestro::testing_support
