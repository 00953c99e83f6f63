// How a rank that is busy with files tells the others, who wait for it, that it is at work: an empty message
// to each about once a second. A rank that is stopped, or in a call that never returns, sends none.
#pragma once

#include "base/pulse.hpp"
#include "comm/communicator.hpp"
#include "comm/watchdog.hpp"

namespace maestro::comm {

/// Owns a duplicate of `world`; points to its Waiter and to `watchdog`, which outlive it. Used by the main
/// thread.
class Heartbeat final : public Pulse {
public:
    /// Collective.
    Heartbeat(const Communicator& world, Watchdog& watchdog);
    ~Heartbeat() override;
    Heartbeat(const Heartbeat&) = delete;
    Heartbeat& operator=(const Heartbeat&) = delete;

    void doing(const std::string& what) noexcept override;
    void beat() noexcept override;

private:
    bool heard() noexcept;

    Watchdog& watchdog_;
    Communicator world_;
    double interval_s_;
    double last_s_ = 0;  ///< when any rank was last known to have told all
};

}  // namespace maestro::comm
