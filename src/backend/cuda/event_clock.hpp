// The clock of a GPU: CUDA events in its compute stream, which are read after the device has reached them.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "backend/clock.hpp"
#include "backend/cuda/stream.hpp"

namespace maestro::backend {

class CudaClock final : public Clock {
public:
    /// `wait` blocks until the device has reached an event.
    CudaClock(Stream stream, std::function<void(const CudaEvent&)> wait)
        : stream_(stream), wait_(std::move(wait)) {}

    /// Does not block the host.
    Mark mark() override;
    void read() override;
    double at(const Mark& mark) const override;

private:
    Stream stream_;
    std::function<void(const CudaEvent&)> wait_;
    std::deque<CudaEvent> events_;  ///< events of the marks that were not read, then unused events
    std::vector<Mark> marks_;       ///< marks that were not read yet
    std::uint64_t marked_ = 0;      ///< number of marks so far
    std::uint64_t first_read_ = 0;  ///< number of the first mark of the last read()
    std::vector<double> times_;     ///< in seconds, of the marks from first_read_ on
};

}  // namespace maestro::backend
