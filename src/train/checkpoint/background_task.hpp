// Work with files in a separate thread, while the main thread trains.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/pulse.hpp"
#include "comm/waiter.hpp"

namespace maestro::train {

/// Runs one piece of work at a time. All functions are called by the main thread.
class BackgroundTask {
public:
    /// `timeout_s`: how long the work may report no progress before it counts as hanging. `processors`: on
    /// which the thread may run; empty: on those of the main thread.
    explicit BackgroundTask(double timeout_s, std::vector<int> processors = {})
        : timeout_s_(timeout_s), processors_(std::move(processors)) {}
    /// Cancels the work and waits for it, at most the timeout. A thread that hangs is left behind.
    ~BackgroundTask();
    BackgroundTask(const BackgroundTask&) = delete;
    BackgroundTask& operator=(const BackgroundTask&) = delete;

    /// Starts `work`, which gets a separate pulse: it calls neither MPI nor HDF5, reports its progress, and
    /// ends soon after the pulse says that it is cancelled. It runs at a low priority, so that it delays
    /// threads that compute as little as possible. No other work may be under way (checked).
    void start(std::function<void(Pulse&)> work);
    bool running() const;  ///< started and not ended yet
    bool failed() const;   ///< ended with an error, which take() throws
    /// Throws Error(peer_lost), which names what the work does, if it has made no progress for too long.
    void check_progress();
    /// Waits for the end of the work. `pulse` is told of its progress, and `waiter` advances what the main
    /// thread has under way. Throws like check_progress().
    void wait(Pulse& pulse, comm::Waiter& waiter);
    /// Tells the work that it is no longer wanted.
    void cancel();
    /// After the end of the work: throws the error that it ended with, if any. Otherwise does nothing.
    void take();

private:
    struct Shared;  ///< what the two threads share

    double timeout_s_;
    std::vector<int> processors_;
    std::shared_ptr<Shared> shared_;
    std::thread thread_;
};

}  // namespace maestro::train
