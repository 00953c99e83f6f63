#include "data/prefetcher.hpp"

#include <utility>

#include "base/check.hpp"

namespace maestro::data {

Prefetcher::Prefetcher(const SampleFile& file) : file_(file), thread_([this] { work(); }) {}

Prefetcher::~Prefetcher() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    queued_.notify_all();
    thread_.join();
}

void Prefetcher::start(const std::vector<std::int64_t>& ids) {
    {
        const std::lock_guard lock(mutex_);
        for (const std::int64_t id : ids)
            if (slots_[id].uses++ == 0) queue_.push_back(id);
    }
    queued_.notify_one();
}

const Sample& Prefetcher::get(std::int64_t id) {
    std::unique_lock lock(mutex_);
    const auto at = slots_.find(id);
    MAESTRO_CHECK(at != slots_.end(), "sample {} was not started", id);
    // References into an unordered_map survive insertions by other calls.
    Slot& slot = at->second;
    arrived_.wait(lock, [&] { return slot.ready; });
    if (slot.error) std::rethrow_exception(slot.error);
    return *slot.sample;
}

void Prefetcher::drop(std::int64_t id) {
    const std::lock_guard lock(mutex_);
    const auto at = slots_.find(id);
    if (at == slots_.end() || --at->second.uses > 0) return;
    if (at->second.sample) spare_.push_back(std::move(at->second.sample));
    slots_.erase(at);
}

std::unique_ptr<Sample> Prefetcher::take_spare() {
    if (spare_.empty()) return std::make_unique<Sample>();
    auto sample = std::move(spare_.back());
    spare_.pop_back();
    return sample;
}

void Prefetcher::work() {
    std::unique_lock lock(mutex_);
    while (true) {
        queued_.wait(lock, [&] { return stop_ || !queue_.empty(); });
        if (stop_) return;
        const std::int64_t id = queue_.front();
        queue_.pop_front();
        // Dropped before it was read, or dropped and started anew and read already.
        if (const auto at = slots_.find(id); at == slots_.end() || at->second.ready) continue;
        auto sample = take_spare();
        std::exception_ptr error;
        lock.unlock();
        try {
            file_.read(id, *sample);
        } catch (...) {
            error = std::current_exception();
        }
        lock.lock();
        const auto at = slots_.find(id);
        if (at == slots_.end() || at->second.ready) {
            spare_.push_back(std::move(sample));
            continue;
        }
        at->second.sample = std::move(sample);
        at->second.error = error;
        at->second.ready = true;
        arrived_.notify_all();
    }
}

}  // namespace maestro::data
