#include "comm/waiter.hpp"

#include <fmt/core.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/error.hpp"
#include "comm/check.hpp"
#include "comm/communicator.hpp"
#include "comm/environment.hpp"
#include "comm/watchdog.hpp"

namespace maestro::comm {

namespace {
constexpr int kSpins = 200;  // about 50 us: a put between two cores that both run
constexpr double kShortestNapS = 50e-6;
constexpr double kLongestNapS = 200e-6;
constexpr double kLongWaitS = 0.25;  // from here on the watchdog is told, once a second
constexpr double kReportS = 1.0;

// One-sided operations need the target inside MPI on some networks; a probe of an own communicator is the
// cheapest way.
void drive_progress() {
    int flag = 0;
    MAESTRO_MPI(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &flag, MPI_STATUS_IGNORE));
}

int world_rank() {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
}
}  // namespace

double Waiter::begin() {
    turns_ = 0;
    heard_s_ = 0;
    next_report_s_ = kLongWaitS;
    return now_s();
}

void Waiter::pause(double start_s, const std::function<std::string()>& describe) {
    drive_progress();
    progress_.take_turns();
    if (++turns_ < kSpins) {
        if (turns_ % 8 == 0) sched_yield();
        return;
    }
    const double elapsed = now_s() - start_s;
    const bool late = elapsed - heard_s_ > timeout_s_;
    // Asked on every nap and not only when it is late, because asking also forwards what was heard.
    if (heard_ && heard_()) {
        heard_s_ = elapsed;
        if (watchdog_) watchdog_->progress();
    } else if (late) {
        const std::string who = watchdog_ ? watchdog_->activity() : fmt::format("rank {}", world_rank());
        throw Error(ExitCode::peer_lost, fmt::format("{}: no answer for {:.0f} s; waiting for {}", who,
                                                     timeout_s_, named(describe)));
    }
    if ((watchdog_ || !looks_.empty()) && elapsed > next_report_s_) {
        const std::string what = named(describe);
        if (watchdog_) watchdog_->waiting(what);
        next_report_s_ = elapsed + kReportS;
    }
    const double nap = std::min(kLongestNapS, kShortestNapS + elapsed / 100);
    std::this_thread::sleep_for(std::chrono::duration<double>(nap));
}

std::string Waiter::named(const std::function<std::string()>& describe) const {
    std::string text = describe();
    for (const Look& look : looks_)
        if (const std::string more = look(); !more.empty()) text += "; " + more;
    return text;
}

void Waiter::end() {
    if (watchdog_ && next_report_s_ > kLongWaitS) watchdog_->waiting("");
}

}  // namespace maestro::comm
