#include "comm/progress.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace maestro::comm {

namespace {
// A large message needs three polls by either side, so sleeps are short while one is pending; an unexpected
// message may wait for a long sleep. scripts/bench/two_nodes.py measures what this costs computing ranks.
constexpr auto kMinSleep = std::chrono::microseconds(100);
constexpr auto kMaxSleep = std::chrono::microseconds(1000);
}  // namespace

Progress::~Progress() {
    {
        const std::lock_guard lock(sleep_);
        stop_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
}

Progress::Id Progress::add(Poll poll) {
    const std::lock_guard lock(mutex_);
    polls_.push_back(std::move(poll));
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    return std::prev(polls_.end());
}

void Progress::remove(Id id) {
    const std::lock_guard lock(mutex_);
    polls_.erase(id);
}

bool Progress::poll_all() {
    bool busy = false;
    for (const Poll& poll : polls_) busy = poll() || busy;
    return busy;
}

void Progress::poll() {
    if (!thread_.joinable()) return;
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return;
    if (error_) std::rethrow_exception(error_);
    poll_all();
}

void Progress::run() {
    auto sleep = kMinSleep;
    std::unique_lock sleeping(sleep_);
    while (!stop_) {
        sleeping.unlock();
        bool busy = false;
        {
            const std::lock_guard lock(mutex_);
            try {
                if (!error_) busy = poll_all();
            } catch (...) {
                error_ = std::current_exception();
            }
        }
        sleep = busy ? kMinSleep : std::min(2 * sleep, kMaxSleep);
        sleeping.lock();
        wake_.wait_for(sleeping, sleep, [this] { return stop_; });
    }
}

}  // namespace maestro::comm
