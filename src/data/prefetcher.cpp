#include "data/prefetcher.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"

namespace maestro::data {

Prefetcher::Prefetcher(const SampleFile& file, std::int64_t bytes_ahead)
    : file_(file), bytes_ahead_(bytes_ahead), thread_([this] { work(); }) {}

Prefetcher::~Prefetcher() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

std::int64_t Prefetcher::start(Request request) {
    std::int64_t bytes = 0, ticket = 0;
    for (const std::int64_t id : request.samples) bytes += file_.bytes(id, request.part);
    {
        const std::lock_guard lock(mutex_);
        ticket = tickets_++;
        queue_.push_back({ticket, bytes, std::move(request)});
    }
    changed_.notify_one();
    return ticket;
}

std::vector<Sample> Prefetcher::take(std::int64_t ticket) {
    std::unique_lock lock(mutex_);
    const bool known =
        ticket == reading_ || ready_.contains(ticket) ||
        std::any_of(queue_.begin(), queue_.end(), [&](const Queued& q) { return q.ticket == ticket; });
    MAESTRO_CHECK(known, "request {} was not started, or taken before", ticket);
    wanted_ = ticket;
    changed_.notify_one();
    arrived_.wait(lock, [&] { return ready_.contains(ticket); });
    wanted_ = -1;
    Ready ready = std::move(ready_.extract(ticket).mapped());
    bytes_ready_ -= ready.bytes;
    lock.unlock();
    changed_.notify_one();
    if (ready.error) std::rethrow_exception(ready.error);
    return std::move(ready.samples);
}

std::deque<Prefetcher::Queued>::iterator Prefetcher::next() {
    const auto wanted =
        std::find_if(queue_.begin(), queue_.end(), [&](const Queued& q) { return q.ticket == wanted_; });
    if (wanted != queue_.end() || queue_.empty()) return wanted;
    const bool room = bytes_ready_ == 0 || bytes_ready_ + queue_.front().bytes <= bytes_ahead_;
    return room ? queue_.begin() : queue_.end();
}

void Prefetcher::work() {
    std::unique_lock lock(mutex_);
    while (true) {
        changed_.wait(lock, [&] { return stop_ || next() != queue_.end(); });
        if (stop_) return;
        const auto at = next();
        const Queued job = std::move(*at);
        queue_.erase(at);
        reading_ = job.ticket;
        Ready ready{.bytes = job.bytes, .error = {}, .samples = {}};
        lock.unlock();
        try {
            ready.samples.resize(job.request.samples.size());
            for (std::size_t i = 0; i < ready.samples.size(); ++i)
                file_.read(job.request.samples[i], ready.samples[i], job.request.part);
        } catch (...) {
            ready.error = std::current_exception();
        }
        lock.lock();
        reading_ = -1;
        bytes_ready_ += ready.bytes;
        ready_.emplace(job.ticket, std::move(ready));
        arrived_.notify_all();
    }
}

}  // namespace maestro::data
