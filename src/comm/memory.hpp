// Memory of this node and of this process.
#pragma once

#include <cstdint>

namespace maestro::comm {

/// Bytes that the ranks of this node can still allocate: what Linux reports as available, or what is left of
/// the limit of a control group (of a batch system or a container) if that is less.
std::uint64_t available_memory();

struct Resident {
    std::uint64_t now = 0, most = 0;  ///< bytes of this process in memory: now, and the largest so far
};
Resident resident_memory();

}  // namespace maestro::comm
