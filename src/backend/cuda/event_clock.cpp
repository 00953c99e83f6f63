#include "backend/cuda/event_clock.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace maestro::backend {

Mark CudaClock::mark() {
    if (marks_.size() == events_.size()) events_.emplace_back(cudaEventDefault);
    Mark mark = Clock::mark();
    mark.number = marked_++;
    events_[marks_.size()].record(stream_);
    marks_.push_back(mark);
    return mark;
}

/// CUDA measures the time between events, but not when they were reached on the host's clock. The host's
/// times of the marks bound this: the device reaches no event before the host recorded it, and reaches an
/// event at once if the stream is idle. The earliest start that satisfies all bounds is used, so that no mark
/// lies in the host's future.
void CudaClock::read() {
    if (marks_.empty()) return;
    wait_(events_[marks_.size() - 1]);
    first_read_ = marks_.front().number;
    times_.clear();
    double begin = marks_.front().host_s;
    for (std::size_t i = 0; i < marks_.size(); ++i) {
        times_.push_back(i == 0 ? 0 : events_[i].seconds_after(events_[0]));
        begin = std::max(begin, marks_[i].host_s - times_.back());
    }
    for (double& second : times_) second += begin;
    marks_.clear();
}

double CudaClock::at(const Mark& mark) const {
    MAESTRO_CHECK(mark.number >= first_read_ && mark.number - first_read_ < times_.size(),
                  "mark {} of a clock that was read from {} to {}", mark.number, first_read_,
                  first_read_ + times_.size());
    return times_[mark.number - first_read_];
}

}  // namespace maestro::backend
