// A thread that ends the job when the main thread makes no progress: the only help against a stopped rank, a
// cut network or a call that never returns, for which MPI reports no error.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "comm/environment.hpp"

namespace maestro::comm {

/// The main thread reports what it does; when it has reported nothing for too long, the watchdog prints the
/// last report and ends the job. Owns its thread.
class Watchdog {
public:
    struct Settings {
        double timeout_s = 120;
        std::string who = "a rank";  ///< in messages, until identify()
        /// Called once, from the watchdog's thread, before the job ends (writes exit.json). Has 5 s.
        std::function<void(const std::string& reason)> on_hang;
        /// Ends the job; empty: abort_world(76).
        std::function<void()> abort;
        /// Time in seconds, and how often (in real seconds) the thread compares it with the deadline.
        std::function<double()> clock = now_s;
        double poll_s = 0.2;
    };
    explicit Watchdog(Settings settings);
    ~Watchdog();
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;

    /// Reports what the main thread starts now ("section language, forward of micro-batch 3 of step 12").
    /// Counts as progress.
    void doing(std::string what);
    void progress();  ///< reports that the main thread still works on it
    /// Reports what is waited for ("edge vision-language: sample 17 from rank 0"), or "" when the wait is
    /// over. Waiter has its own deadline, so the beginning and the end of a wait count as progress, reports
    /// in between do not.
    void waiting(std::string for_what);
    void identify(std::string who);  ///< "rank 1 (host)"
    void set_timeout(double timeout_s);
    std::string activity() const;  ///< "rank 1 (host), section language, forward of micro-batch 3 of step 12"
    void pause();                  ///< sets no deadline until the next doing()

private:
    void run();
    void end_world(const std::string& reason);

    Settings settings_;
    mutable std::mutex mutex_;
    std::condition_variable wake_;
    std::string doing_;
    std::string waiting_;
    double since_s_ = 0;
    bool paused_ = false;
    bool stop_ = false;
    std::thread thread_;
};

}  // namespace maestro::comm
