#include "comm/heartbeat.hpp"

#include <algorithm>
#include <bit>
#include <optional>

#include "comm/environment.hpp"

namespace maestro::comm {

namespace {
constexpr double kIntervalS = 1.0;
constexpr double kPollsPerInterval = 8;
}  // namespace

Heartbeat::Heartbeat(const Communicator& world, Watchdog& watchdog)
    : watchdog_(watchdog),
      world_(world.split(0, world.rank(), "heartbeat")),
      interval_s_(std::min(kIntervalS, world.waiter().timeout_s() / 4)) {
    for (int distance = 1; distance < world_.size(); distance *= 2)
        branches_.push_back({.peer = (world_.rank() + distance) % world_.size()});
    world.waiter().set_heartbeat_poll([this] { return poll(); });
}

Heartbeat::~Heartbeat() {
    world_.waiter().set_heartbeat_poll({});
}

void Heartbeat::doing(const std::string& what) noexcept {
    try {
        watchdog_.doing(what);
    } catch (...) {  // no memory for the text: the last one stays
    }
    beat();
}

void Heartbeat::beat() noexcept {
    watchdog_.progress();
    if (branches_.empty()) return;
    poll();
    // News of one busy rank is enough for all, so a rank that has heard of another sends nothing.
    if (now_s() - news_s_ < interval_s_) return;
    news_s_ = now_s();
    notify(static_cast<int>(branches_.size()));
}

/// Receives and forwards heartbeats; returns whether there were any. Does nothing if it was called just now.
bool Heartbeat::poll() noexcept {
    const double now = now_s();
    if (now - polled_s_ < interval_s_ / kPollsPerInterval) return false;
    polled_s_ = now;
    bool received = false;
    try {
        while (const std::optional<Communicator::Notice> notice = world_.next_notice()) {
            const auto distance =
                static_cast<unsigned>((world_.rank() - notice->rank + world_.size()) % world_.size());
            received = true;
            news_s_ = now;
            notify(std::countr_zero(distance));
        }
    } catch (...) {  // a broken network ends the wait by its deadline
    }
    send_pending();
    return received;
}

/// The first `branches`: each stands for the ranks from its peer up to the next one's.
void Heartbeat::notify(int branches) noexcept {
    for (int i = 0; i < branches; ++i) branches_[static_cast<std::size_t>(i)].pending = true;
    send_pending();
}

/// A branch that was notified a moment ago is notified again later, and not skipped: if news were dropped at
/// every hop, the last ranks would hear too seldom.
void Heartbeat::send_pending() noexcept {
    const double now = now_s();
    for (Branch& branch : branches_) {
        if (!branch.pending || now - branch.sent_s < interval_s_ / 2) continue;
        branch.pending = false;
        branch.sent_s = now;
        try {
            world_.notify(branch.peer);
        } catch (...) {  // not reported here: if the others hear nothing for too long, they end the job
        }
    }
}

}  // namespace maestro::comm
