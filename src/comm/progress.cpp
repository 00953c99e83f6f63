#include "comm/progress.hpp"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace maestro::comm {

namespace {
struct Sleeps {
    std::chrono::microseconds least, most;  ///< while something is pending; while nothing is
};
// A large message needs three polls by either side, so sleeps are short while one is pending; an unexpected
// message may wait for a long sleep. scripts/bench/two_nodes.py measures what this costs computing ranks.
constexpr Sleeps kSleeps{std::chrono::microseconds(100), std::chrono::microseconds(1000)};
// Where nothing else needs the core. Linux lets a sleep last up to 50 us longer than asked for, unless the
// thread asks for less.
constexpr Sleeps kBriefSleeps{std::chrono::microseconds(10), std::chrono::microseconds(100)};
constexpr unsigned long kBriefSlackNs = 1000;
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

void Progress::wake() {
    {
        const std::lock_guard lock(sleep_);
        woken_ = true;
    }
    wake_.notify_all();
}

void Progress::run() {
    auto sleep = kSleeps.least;
    bool slack_is_set = false;
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
        if (brief_ && !std::exchange(slack_is_set, true)) prctl(PR_SET_TIMERSLACK, kBriefSlackNs);
        const Sleeps& sleeps = brief_ ? kBriefSleeps : kSleeps;
        sleep = busy ? sleeps.least : std::min(2 * sleep, sleeps.most);
        sleeping.lock();
        wake_.wait_for(sleeping, sleep, [this] { return stop_ || woken_; });
        woken_ = false;
    }
}

}  // namespace maestro::comm
