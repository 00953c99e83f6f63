// The clock of a GPU: events in its computing stream, read when it is past them.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "backend/clock.hpp"
#include "backend/cuda/stream.hpp"

namespace maestro::backend {

class CudaClock final : public Clock {
public:
    /// `wait` returns when the stream is past an event.
    CudaClock(Stream stream, std::function<void(const CudaEvent&)> wait)
        : stream_(stream), wait_(std::move(wait)) {}

    /// The host waits for nothing.
    Mark mark() override;
    void read() override;
    double at(const Mark& mark) const override;

private:
    Stream stream_;
    std::function<void(const CudaEvent&)> wait_;
    std::deque<CudaEvent> events_;  ///< of marks that are not read, then spare ones
    std::vector<Mark> marks_;       ///< not read
    std::uint64_t given_ = 0;       ///< marks
    std::uint64_t first_ = 0;       ///< number of the first one that was read last
    std::vector<double> read_;      ///< seconds, from `first_` on
};

}  // namespace maestro::backend
