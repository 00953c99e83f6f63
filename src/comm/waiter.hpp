// All waits of a rank go through here: a short spin, then short sleeps, with MPI progress in between, and a
// deadline.
#pragma once

#include <functional>
#include <list>
#include <string>
#include <utility>

#include "comm/progress.hpp"

namespace maestro::comm {

class Watchdog;

/// Belongs to the main thread. Communicators and channels point to it, so it must outlive them.
class Waiter {
public:
    explicit Waiter(double timeout_s = 120) : timeout_s_(timeout_s) {}
    Waiter(const Waiter&) = delete;
    Waiter& operator=(const Waiter&) = delete;
    void set_timeout(double timeout_s) { timeout_s_ = timeout_s; }
    double timeout_s() const { return timeout_s_; }
    /// Waits are reported to `watchdog` (not owned; nullptr: none), whose doing() also goes into the error.
    void report_to(Watchdog* watchdog) { watchdog_ = watchdog; }

    /// `poll` (empty: none) is called often during a wait and returns whether another rank has sent a
    /// heartbeat since the last call: then the deadline of the present wait starts again. It must be cheap.
    void set_heartbeat_poll(std::function<bool()> poll) { heartbeat_poll_ = std::move(poll); }
    /// Names the ranks that have not answered yet; "": all have.
    using Missing = std::function<std::string()>;
    /// For a wait that is over its deadline: `ask` asks all other ranks whether they are there, once, and the
    /// wait then goes on for a moment, so that its error can name the ranks that do not answer. `answer` is
    /// called often during a wait and answers the others; it must be cheap. Neither may wait. Both empty:
    /// none.
    void set_roll_call(std::function<Missing()> ask, std::function<void()> answer) {
        ask_ = std::move(ask);
        answer_ = std::move(answer);
    }
    /// Polls heartbeats and answers roll calls outside of a wait. A rank that may work for longer than a
    /// deadline without a wait does this in between, because some ranks hear of others only through it (see
    /// Heartbeat), and because it would be named as one that does not answer.
    void poll_heartbeats() const {
        if (heartbeat_poll_) heartbeat_poll_();
        if (answer_) answer_();
    }

    /// Describes pending work of a device that needs other ranks, which may be the real reason of a long
    /// wait. It is called about once a second of a long wait. Its text ("": nothing is pending) is added to
    /// the description of the wait, and an exception ends the wait. Main thread only.
    using Diagnostic = std::function<std::string()>;
    using DiagnosticId = std::list<Diagnostic>::iterator;
    DiagnosticId add_diagnostic(Diagnostic diagnostic) {
        return diagnostics_.insert(diagnostics_.end(), std::move(diagnostic));
    }
    void remove_diagnostic(DiagnosticId id) { diagnostics_.erase(id); }

    /// Returns as soon as ready() is true. Throws Error(peer_lost) with describe() after timeout_s, with a
    /// roll call up to 2 s later; describe() is called for long waits only. ready() may call MPI but must not
    /// wait itself. The sleeps let other ranks run on the same core.
    template <class Ready, class Describe>
    void wait_until(Ready&& ready, Describe&& describe) {
        if (ready()) return;
        Wait wait = begin();
        while (!ready()) pause(wait, std::ref(describe));
        end(wait);
    }

    /// Advances messages while the main thread computes; waits poll it too.
    Progress& progress() { return progress_; }

    /// Advances what the main thread has started and not yet waited for, without waiting itself. Returns
    /// whether anything is still under way.
    using Poll = std::function<bool()>;
    using PollId = std::list<Poll>::iterator;
    /// From now on every wait calls `poll`, and so does poll(). Main thread only.
    PollId add_poll(Poll poll) { return polls_.insert(polls_.end(), std::move(poll)); }
    void remove_poll(PollId id) { polls_.erase(id); }
    /// For a main thread that computes for long between two waits.
    bool poll();
    /// Sleeps until comm::now_s() is `time_s`, and polls in between while anything is under way.
    void sleep_until(double time_s);

private:
    /// What is polled in a wait may wait itself: it may launch work for a GPU that the host is far ahead of.
    struct Wait {
        double start_s;
        int pauses = 0;
        // Since the start:
        double last_heartbeat_s = 0;
        double next_report_s = 0;
        double asked_s = 0;
        Missing missing = {};  ///< of the roll call that was started at asked_s; empty: of none
    };
    Wait begin() const;
    void pause(Wait& wait, const std::function<std::string()>& describe);
    /// Once a wait is over its deadline. Throws, unless a roll call is not over yet.
    void expire(Wait& wait, double elapsed, const std::function<std::string()>& describe) const;
    void end(const Wait& wait) const;
    std::string named(const std::function<std::string()>& describe) const;

    double timeout_s_;
    Watchdog* watchdog_ = nullptr;
    Progress progress_;
    std::function<bool()> heartbeat_poll_;
    std::function<Missing()> ask_;
    std::function<void()> answer_;
    std::list<Diagnostic> diagnostics_;
    std::list<Poll> polls_;
};

}  // namespace maestro::comm
