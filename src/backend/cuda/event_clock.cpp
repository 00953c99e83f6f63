#include "backend/cuda/event_clock.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace maestro::backend {

Mark CudaClock::mark() {
    if (marks_.size() == events_.size()) events_.emplace_back(cudaEventDefault);
    Mark mark = Clock::mark();
    mark.number = given_++;
    events_[marks_.size()].record(stream_);
    marks_.push_back(mark);
    return mark;
}

/// Events say how far they are from each other. Where on the host's clock they lie, the marks say: none is
/// reached before it was given, and one that finds the stream idle is reached at once. Of all places that
/// allow this the first is taken, so that no time lies behind the host's own.
void CudaClock::read() {
    if (marks_.empty()) return;
    wait_(events_[marks_.size() - 1]);
    first_ = marks_.front().number;
    read_.clear();
    double begin = marks_.front().host_s;
    for (std::size_t i = 0; i < marks_.size(); ++i) {
        read_.push_back(i == 0 ? 0 : events_[i].seconds_after(events_[0]));
        begin = std::max(begin, marks_[i].host_s - read_.back());
    }
    for (double& second : read_) second += begin;
    marks_.clear();
}

double CudaClock::at(const Mark& mark) const {
    MAESTRO_CHECK(mark.number >= first_ && mark.number - first_ < read_.size(),
                  "mark {} of a clock that was read from {} to {}", mark.number, first_,
                  first_ + read_.size());
    return read_[mark.number - first_];
}

}  // namespace maestro::backend
