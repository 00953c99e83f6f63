// How much memory the ranks of this node may still take.
#pragma once

#include <cstdint>

namespace maestro::comm {

/// Bytes: what Linux says new programs may use, or what is left of a control group's limit (a batch system's,
/// a container's) where that is less.
std::uint64_t available_memory();

}  // namespace maestro::comm
