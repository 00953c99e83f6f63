// When a device reached a point in its sequence of operations. For operations that run on the host this is
// known at once; for a GPU it is read later, like a CUDA event.
#pragma once

#include <cstdint>

namespace maestro::backend {

/// A point in the sequence of a device's operations.
struct Mark {
    double host_s = 0;  ///< when the host recorded it
    std::uint64_t number = 0;
};

/// Times are seconds of the host's steady clock, as comm::now_s() returns them. This base class is for
/// operations that run on the host as they are called: they have reached a mark when it is recorded.
class Clock {
public:
    Clock() = default;
    virtual ~Clock() = default;
    Clock(const Clock&) = delete;
    Clock& operator=(const Clock&) = delete;

    /// Records a mark after the operations called so far.
    virtual Mark mark();
    /// Waits until the device has passed all marks that were recorded since the last read().
    virtual void read() {}
    /// Returns when the device passed a mark. Valid for marks recorded before the last read() and not before
    /// the last but one that found any.
    virtual double at(const Mark& mark) const { return mark.host_s; }
};

}  // namespace maestro::backend
