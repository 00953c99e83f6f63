// What a wait does for other ranks, for a main thread that waits for something else.
#pragma once

#include "comm/waiter.hpp"

namespace maestro::comm {

/// To be called often by a main thread that waits for a thread and not for a rank, or that works for long:
/// sums and gathers that it has started advance, and so do messages and heartbeats of others. Waits for
/// nothing. Returns whether anything that it has started is still under way. Throws what that throws.
inline bool advance(Waiter& waiter) {
    waiter.progress().poll();
    waiter.poll_heartbeats();
    return waiter.poll();
}

}  // namespace maestro::comm
