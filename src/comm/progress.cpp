#include "comm/progress.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace maestro::comm {

namespace {
// A large message needs three turns of either side, so naps are short while one is on its way; what comes
// unasked may wait for a long one. scripts/bench/two_nodes.py measures the cost beside computing ranks.
constexpr auto kShortestNap = std::chrono::microseconds(100);
constexpr auto kLongestNap = std::chrono::microseconds(1000);
}  // namespace

Progress::~Progress() {
    {
        const std::lock_guard lock(sleep_);
        stop_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
}

Progress::Id Progress::add(Turn turn) {
    const std::lock_guard lock(mutex_);
    turns_.push_back(std::move(turn));
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    return std::prev(turns_.end());
}

void Progress::remove(Id id) {
    const std::lock_guard lock(mutex_);
    turns_.erase(id);
}

bool Progress::take_all() {
    bool busy = false;
    for (const Turn& turn : turns_) busy = turn() || busy;
    return busy;
}

void Progress::take_turns() {
    if (!thread_.joinable()) return;
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return;
    if (error_) std::rethrow_exception(error_);
    take_all();
}

void Progress::run() {
    auto nap = kShortestNap;
    std::unique_lock sleeping(sleep_);
    while (!stop_) {
        sleeping.unlock();
        bool busy = false;
        {
            const std::lock_guard lock(mutex_);
            try {
                if (!error_) busy = take_all();
            } catch (...) {
                error_ = std::current_exception();
            }
        }
        nap = busy ? kShortestNap : std::min(2 * nap, kLongestNap);
        sleeping.lock();
        wake_.wait_for(sleeping, nap, [this] { return stop_; });
    }
}

}  // namespace maestro::comm
