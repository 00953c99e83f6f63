// A thread that ends the world when the main thread makes no progress: the only help against a stopped rank,
// a cut network or a call that never returns (no MPI error is raised for any of these).
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace maestro::comm {

/// Owns its thread. The main thread says what it does; the watchdog names it when nothing new is said for too
/// long.
class Watchdog {
public:
    struct Settings {
        double timeout_s = 120;
        std::string who = "a rank";  ///< in reports, until identify()
        /// Called once, from the watchdog's thread, before the world is aborted (writes exit.json). Given 5
        /// s.
        std::function<void(const std::string& reason)> on_hang;
        /// What ends the world; empty: abort_world(76).
        std::function<void()> abort;
    };
    explicit Watchdog(Settings settings);
    ~Watchdog();
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;

    /// What the main thread starts now ("section language, forward of micro-batch 3 of step 12"). Counts as
    /// progress.
    void doing(std::string what);
    void progress();  ///< the main thread is alive and still at it
    /// What is waited for ("edge vision-language: sample 17 from rank 0"); "" when the wait is over. A wait
    /// has a deadline of its own, so its begin and end count as progress, what it says in between does not.
    void waiting(std::string for_what);
    void identify(std::string who);  ///< "rank 1 (host)"
    void set_timeout(double timeout_s);
    std::string activity() const;  ///< "rank 1 (host), section language, forward of micro-batch 3 of step 12"
    void pause();                  ///< until the next doing()

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
