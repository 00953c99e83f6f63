#include "comm/progress.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace maestro::comm {

namespace {
// A large message needs three turns of either side. Measured beside computing ranks
// (scripts/bench/two_nodes.py): naps of 0.1 ms cost 1 to 2% of a core, of 0.5 ms nothing that can be seen.
constexpr auto kShortestNap = std::chrono::microseconds(100);
constexpr auto kLongestNap = std::chrono::microseconds(500);
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
    used_ = true;
    return std::prev(turns_.end());
}

void Progress::remove(Id id) {
    const std::lock_guard lock(mutex_);
    turns_.erase(id);
}

bool Progress::take_all() {
    bool moved = false;
    for (const Turn& turn : turns_) moved = turn() || moved;
    return moved;
}

void Progress::take_turns() {
    if (!used_.load(std::memory_order_relaxed)) return;
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return;
    if (failed_) std::rethrow_exception(error_);
    take_all();
}

void Progress::run() {
    auto nap = kShortestNap;
    std::unique_lock sleeping(sleep_);
    while (!stop_) {
        sleeping.unlock();
        bool moved = false;
        {
            const std::lock_guard lock(mutex_);
            try {
                if (!failed_) moved = take_all();
            } catch (...) {
                error_ = std::current_exception();
                failed_ = true;
            }
        }
        nap = moved ? kShortestNap : std::min(nap + nap / 2, kLongestNap);
        sleeping.lock();
        wake_.wait_for(sleeping, nap, [this] { return stop_; });
    }
}

}  // namespace maestro::comm
