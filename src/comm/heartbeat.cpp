#include "comm/heartbeat.hpp"

#include <algorithm>

#include "comm/environment.hpp"

namespace maestro::comm {

namespace {
constexpr double kIntervalS = 1.0;
}  // namespace

Heartbeat::Heartbeat(const Communicator& world, Watchdog& watchdog)
    : watchdog_(watchdog),
      world_(world.split(0, world.rank(), "heartbeat")),
      interval_s_(std::min(kIntervalS, world.waiter().timeout_s() / 4)) {
    world.waiter().listen_to([this] { return heard(); });
}

Heartbeat::~Heartbeat() {
    world_.waiter().listen_to({});
}

void Heartbeat::doing(const std::string& what) noexcept {
    try {
        watchdog_.doing(what);
    } catch (...) {  // no memory for a text: the last one stands
    }
    beat();
}

// What fails here is not told: if the others hear nothing for too long, they say so themselves.
void Heartbeat::beat() noexcept {
    watchdog_.progress();
    const double now = now_s();
    // One rank's word is enough for all, so of many that are at work one speaks in each interval.
    if (world_.size() < 2 || now - last_s_ < interval_s_ || heard()) return;
    last_s_ = now;
    try {
        for (int rank = 0; rank < world_.size(); ++rank)
            if (rank != world_.rank()) world_.notify(rank);
    } catch (...) {
    }
}

bool Heartbeat::heard() noexcept {
    try {
        if (!world_.notified()) return false;
    } catch (...) {
        return false;
    }
    last_s_ = now_s();
    return true;
}

}  // namespace maestro::comm
