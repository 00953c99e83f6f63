// Prefetcher: a thread that reads the samples of a rank's tasks, in the order of the tasks, while the rank
// computes. The bytes that it reads ahead are bounded.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/pulse.hpp"
#include "data/samples.hpp"

namespace maestro::data {

/// The samples of one task.
struct Request {
    std::vector<std::int64_t> samples;
    SampleFields fields = SampleFields::all;
};

/// Used by the main thread. Shares the samples with its thread, so that a read that never returns does not
/// keep the program from ending.
class Prefetcher {
public:
    struct Settings {
        std::int64_t bytes_ahead = std::int64_t{64} << 20;  ///< read ahead, or one request if that is more
        double timeout_s = 120;  ///< the longest time that take() waits without any progress
        /// Called while take() waits: advances what the main thread has started and not yet waited for, such
        /// as sums that other ranks need, and returns whether anything is still under way. Empty: nothing is.
        std::function<bool()> advance = {};
    };
    /// `pulse` belongs to the main thread and must outlive the prefetcher; take() beats while it waits for a
    /// reader that makes progress.
    Prefetcher(std::shared_ptr<const Samples> samples, Settings settings, Pulse& pulse);
    /// Ends the thread after the sample that it is reading. A thread that hangs is left behind.
    ~Prefetcher();
    Prefetcher(const Prefetcher&) = delete;
    Prefetcher& operator=(const Prefetcher&) = delete;

    /// Queues the request behind those already queued; returns the ticket to take it with.
    std::int64_t start(Request request);
    /// Waits until the request's samples have been read and returns them, in the order of the request. A
    /// ticket can be taken once (checked). Rethrows what reading threw. Throws Error(peer_lost), which names
    /// the file and the sample, when nothing has been read for timeout_s. Requests that are taken in the
    /// order in which they were started are read ahead; any other order works too.
    std::vector<Sample> take(std::int64_t ticket);

private:
    struct Queue;  ///< what the two threads share

    std::shared_ptr<Queue> queue_;
    Settings settings_;
    Pulse& pulse_;
    bool hangs_ = false;  ///< take() has given up
    std::thread thread_;
};

}  // namespace maestro::data
