// A bound on how far the host runs ahead of a stream.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <utility>

#include "backend/cuda/stream.hpp"

namespace maestro::backend {

/// CUDA queues about 1000 kernels. The next launch then blocks in the library, without a deadline, and
/// launches of other threads may block behind it. With this bound the host waits earlier and in its usual
/// way: at most kMost kernels are queued, where an operation of a few kernels counts as one.
class RunAhead {
public:
    /// `wait` blocks until the device has reached an event.
    RunAhead(Stream stream, std::function<void(const CudaEvent&)> wait)
        : stream_(stream), wait_(std::move(wait)) {}
    static constexpr std::int64_t kInterval = 32, kIntervals = 4, kMost = kInterval * (kIntervals + 1);

    /// Called after so many kernels, at most kInterval, were queued.
    void queued(std::int64_t kernels) {
        const std::int64_t interval = kernels_ / kInterval;
        kernels_ += kernels;
        if (kernels_ / kInterval == interval) return;
        CudaEvent& event = events_[static_cast<std::size_t>(kernels_ / kInterval % kIntervals)];
        if (!event.reached()) wait_(event);
        event.record(stream_);
    }

private:
    Stream stream_;
    std::function<void(const CudaEvent&)> wait_;
    std::array<CudaEvent, kIntervals> events_;  ///< recorded after every kInterval kernels
    std::int64_t kernels_ = 0;
};

}  // namespace maestro::backend
