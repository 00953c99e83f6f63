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
/// way: at most kMost operations, of one kernel or a few each, are queued.
class RunAhead {
public:
    /// `wait` blocks until the device has reached an event.
    RunAhead(Stream stream, std::function<void(const CudaEvent&)> wait)
        : stream_(stream), wait_(std::move(wait)) {}
    static constexpr std::uint64_t kInterval = 32, kIntervals = 4, kMost = kInterval * (kIntervals + 1);

    /// Called after each operation that was queued.
    void queued() {
        if (++operations_ % kInterval != 0) return;
        CudaEvent& event = events_[operations_ / kInterval % kIntervals];
        if (!event.reached()) wait_(event);
        event.record(stream_);
    }

private:
    Stream stream_;
    std::function<void(const CudaEvent&)> wait_;
    std::array<CudaEvent, kIntervals> events_;  ///< recorded after every kInterval operations
    std::uint64_t operations_ = 0;
};

}  // namespace maestro::backend
