// How a rank that is busy with files tells the ranks that wait for it that it is still working.
#pragma once

#include <vector>

#include "base/pulse.hpp"
#include "comm/communicator.hpp"
#include "comm/watchdog.hpp"

namespace maestro::comm {

/// Tells this rank's watchdog on every beat, and all other ranks about once a second. A rank that is stopped,
/// or in a call that never returns, sends nothing.
///
/// Empty messages spread along binomial trees: a rank that beats tells ranks rank + 1, + 2, + 4, ..., and a
/// rank that hears from rank - 2^k tells ranks rank + 2^j for all j < k. Every rank is reached over at most
/// log2(P) hops, and since k falls with every hop, no message circulates. However many ranks are busy at
/// once, a rank sends at most log2(P) messages in each half of an interval. Ranks forward while they wait
/// and while they beat; one that computes forwards between its tasks (Waiter::poll_heartbeats()), so a task
/// has to be shorter than the deadline.
///
/// Owns a duplicate of `world`; points to its Waiter and to `watchdog`, which must outlive it. Main thread
/// only.
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
    /// One of the ranks that this rank tells: rank + 2^j, j being the place in branches_.
    struct Branch {
        int peer = 0;
        bool pending = false;  ///< has to be notified
        double sent_s = 0;     ///< when it was last notified
    };
    bool poll() noexcept;
    void notify(int branches) noexcept;
    void send_pending() noexcept;

    Watchdog& watchdog_;
    Communicator world_;
    double interval_s_;
    double news_s_ = 0;    ///< when this rank last told the others, or heard that another rank is busy
    double polled_s_ = 0;  ///< when it last looked for messages
    std::vector<Branch> branches_;
};

}  // namespace maestro::comm
