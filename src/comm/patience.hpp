// A longer deadline for waits on a rank that may be waiting itself.
#pragma once

#include "comm/waiter.hpp"

namespace maestro::comm {

/// While it exists, waits last a little longer than the waiter's deadline. It is for ranks that wait for one
/// that does something on its own: if that one hangs, it knows why, and its waiter, which reports up to a
/// roll call after the deadline, or its watchdog, which fires up to a heartbeat and a margin after it, should
/// be first. The others report only if it stays silent too.
class Patience {
public:
    explicit Patience(Waiter& waiter) : waiter_(waiter), timeout_s_(waiter.timeout_s()) {
        waiter.set_timeout(timeout_s_ + kExtraS);
    }
    ~Patience() { waiter_.set_timeout(timeout_s_); }
    Patience(const Patience&) = delete;
    Patience& operator=(const Patience&) = delete;

private:
    static constexpr double kExtraS = 4;

    Waiter& waiter_;
    double timeout_s_;
};

}  // namespace maestro::comm
