// When a device was where in its work. One that shares the host's time is asked at once, a GPU when it is
// past.
#pragma once

#include <cstdint>

namespace maestro::backend {

/// A place in what a device does, by the order of operations.
struct Mark {
    double host_s = 0;  ///< when the host gave it
    std::uint64_t number = 0;
};

/// Seconds of the host's steady clock, which comm::now_s() tells, too. This one is for operations that run as
/// they are called: they are there when they get the mark.
class Clock {
public:
    Clock() = default;
    virtual ~Clock() = default;
    Clock(const Clock&) = delete;
    Clock& operator=(const Clock&) = delete;

    virtual Mark mark();
    /// Waits until the device is past all marks, if any were given since the last time.
    virtual void read() {}
    /// When the device was there. Of marks given before the last read(), and not before that which found some
    /// before it.
    virtual double at(const Mark& mark) const { return mark.host_s; }
};

}  // namespace maestro::backend
