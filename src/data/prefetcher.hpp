// Prefetcher: one thread that reads the samples a rank will need, in the order in which it will need them,
// while the rank computes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "data/sample_file.hpp"

namespace maestro::data {

class Prefetcher {
public:
    /// `file` must outlive the prefetcher.
    explicit Prefetcher(const SampleFile& file);
    ~Prefetcher();
    Prefetcher(const Prefetcher&) = delete;
    Prefetcher& operator=(const Prefetcher&) = delete;

    /// Queues the samples behind those already queued. A sample may be listed more than once; it is read
    /// once, and held until it has been dropped as often as it was listed.
    void start(const std::vector<std::int64_t>& ids);
    /// Waits until the sample is there; valid until its last drop. Throws what reading it threw. The sample
    /// must have been started (checked).
    const Sample& get(std::int64_t id);
    /// Gives the sample's memory back for the next one. A sample that is not held is left alone.
    void drop(std::int64_t id);

private:
    struct Slot {
        int uses = 0;
        bool ready = false;
        std::exception_ptr error;
        std::unique_ptr<Sample> sample;
    };
    void work();
    std::unique_ptr<Sample> take_spare();

    const SampleFile& file_;
    std::mutex mutex_;
    std::condition_variable queued_;
    std::condition_variable arrived_;
    std::deque<std::int64_t> queue_;
    std::unordered_map<std::int64_t, Slot> slots_;
    std::vector<std::unique_ptr<Sample>> spare_;
    bool stop_ = false;
    std::thread thread_;
};

}  // namespace maestro::data
