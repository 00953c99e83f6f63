// How much memory the ranks of this node may still take.
#pragma once

#include <cstdint>

namespace maestro::comm {

/// Bytes: what Linux says new programs may use, or what is left of a control group's limit (a batch system's,
/// a container's) where that is less.
std::uint64_t available_memory();

struct Resident {
    std::uint64_t now = 0, most = 0;  ///< bytes of this process in memory, now and at most so far
};
Resident resident_memory();

}  // namespace maestro::comm
