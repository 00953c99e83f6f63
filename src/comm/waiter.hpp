// The one place where a rank waits: a short spin, then naps, MPI progress in between, and a deadline.
#pragma once

#include <functional>
#include <list>
#include <string>
#include <utility>

#include "comm/progress.hpp"

namespace maestro::comm {

class Watchdog;

/// A value of the main thread that communicators and channels point to; it must outlive them.
class Waiter {
public:
    explicit Waiter(double timeout_s = 120) : timeout_s_(timeout_s) {}
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;
    void set_timeout(double timeout_s) { timeout_s_ = timeout_s; }
    double timeout_s() const { return timeout_s_; }
    /// Waits are reported to `watchdog` (not owned; nullptr: none), whose doing() also goes into the error.
    void report_to(Watchdog* watchdog) { watchdog_ = watchdog; }

    /// `heard` (empty: none) is asked often during a wait and returns whether another rank has sent a
    /// heartbeat since the last time: then the deadline of the present wait starts again. It must be cheap.
    void listen_to(std::function<bool()> heard) { heard_ = std::move(heard); }

    /// What else a long wait may be for: work of a device that others must take part in. Looked at about once
    /// a second of a long wait; what it says ("": nothing) is named beside what is waited for, what it throws
    /// ends the wait. Removed by the main thread.
    using Look = std::function<std::string()>;
    using LookId = std::list<Look>::iterator;
    LookId add_look(Look look) { return looks_.insert(looks_.end(), std::move(look)); }
    void remove_look(LookId id) { looks_.erase(id); }

    /// Returns once ready() is true, after at most timeout_s. Otherwise throws Error(peer_lost) with
    /// describe(), which is called only when the wait is a long one. ready() may call MPI, but not wait
    /// itself. Naps let oversubscribed ranks run.
    template <class Ready, class Describe>
    void wait_until(Ready&& ready, Describe&& describe) {
        if (ready()) return;
        const double start = begin();
        while (!ready()) pause(start, std::ref(describe));
        end();
    }

    /// What moves messages meanwhile; waits take its turns too.
    Progress& progress() { return progress_; }

private:
    double begin();
    void pause(double start_s, const std::function<std::string()>& describe);
    void end();
    std::string named(const std::function<std::string()>& describe) const;

    double timeout_s_;
    Watchdog* watchdog_ = nullptr;
    Progress progress_;
    std::function<bool()> heard_;
    std::list<Look> looks_;
    int turns_ = 0;
    double heard_s_ = 0;        // into the present wait
    double next_report_s_ = 0;  // into the present wait
};

}  // namespace maestro::comm
