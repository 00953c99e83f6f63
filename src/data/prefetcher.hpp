// Prefetcher: one thread that reads the samples of the tasks a rank will run, in that order, while the rank
// computes. What lies ready is bounded in bytes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "data/sample_file.hpp"

namespace maestro::data {

/// The samples of one task.
struct Request {
    std::vector<std::int64_t> samples;
    Part part = Part::all;
};

class Prefetcher {
public:
    /// `file` must outlive the prefetcher. At most `bytes_ahead`, or one request where that is more, lie
    /// ready.
    Prefetcher(const SampleFile& file, std::int64_t bytes_ahead);
    ~Prefetcher();
    Prefetcher(const Prefetcher&) = delete;
    Prefetcher& operator=(const Prefetcher&) = delete;

    /// Queues the request behind those already queued; returns the ticket to take it with.
    std::int64_t start(Request request);
    /// Waits until the request's samples are there and hands them over, in its order. A ticket counts once
    /// (checked). Throws what reading threw. Tickets taken in the order of their start are read ahead; any
    /// other order works too.
    std::vector<Sample> take(std::int64_t ticket);

private:
    struct Ready {
        std::int64_t bytes = 0;
        std::exception_ptr error;
        std::vector<Sample> samples;
    };
    struct Queued {
        std::int64_t ticket = 0;
        std::int64_t bytes = 0;
        Request request;
    };
    void work();
    /// The request to read now, or the queue's end.
    std::deque<Queued>::iterator next();

    const SampleFile& file_;
    const std::int64_t bytes_ahead_;
    std::mutex mutex_;
    std::condition_variable changed_;  ///< for the thread: something queued, taken or wanted
    std::condition_variable arrived_;
    std::deque<Queued> queue_;
    std::unordered_map<std::int64_t, Ready> ready_;
    std::int64_t bytes_ready_ = 0;
    std::int64_t tickets_ = 0;
    std::int64_t reading_ = -1;  ///< ticket in the thread's hands
    std::int64_t wanted_ = -1;   ///< ticket that take() waits for
    bool stop_ = false;
    std::thread thread_;
};

}  // namespace maestro::data
