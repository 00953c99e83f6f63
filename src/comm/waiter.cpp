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
constexpr int kSpins = 200;  // about 50 us, enough for a put between two cores that both run
constexpr int kSpinsOfPoll = 16;
constexpr double kMinSleepS = 50e-6;
constexpr double kMaxSleepS = 200e-6;
constexpr double kLongWaitS = 0.25;  // longer waits are reported to the watchdog, once a second
constexpr double kReportS = 1.0;
constexpr double kWaiterPollS = 1e-3;
// How long a roll call lasts at most: even with Patience it ends before the watchdog fires, which leaves a
// rank that waits 8 s.
constexpr double kMaxRollCallS = 2.0;
constexpr double kRollCallOfTimeout = 0.25;

// On some networks one-sided operations proceed only while the target is inside MPI. A probe of the
// communicator of this process alone is the cheapest call.
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

Waiter::Wait Waiter::begin() const {
    return {.start_s = now_s(), .next_report_s = kLongWaitS};
}

void Waiter::pause(Wait& wait, const std::function<std::string()>& describe) {
    drive_progress();
    progress_.poll();
    const bool spins = ++wait.pauses < kSpins;
    // A poll may look at many messages: at every turn, it would make the spin last several times as long.
    if (!spins || wait.pauses % kSpinsOfPoll == 0) poll();
    if (spins) {
        if (wait.pauses % 8 == 0) sched_yield();
        return;
    }
    const double elapsed = now_s() - wait.start_s;
    if (answer_) answer_();
    const bool late = elapsed - wait.last_heartbeat_s > timeout_s_;
    // Called before every sleep and not only when it is late, because this also forwards heartbeats.
    if (heartbeat_poll_ && heartbeat_poll_()) {
        wait.last_heartbeat_s = elapsed;
        wait.missing = {};  // those who answer now may be silent at the next deadline
        if (watchdog_) watchdog_->progress();
    } else if (late) {
        expire(wait, elapsed, describe);
    }
    if ((watchdog_ || !diagnostics_.empty()) && elapsed > wait.next_report_s) {
        const std::string what = named(describe);
        if (watchdog_) watchdog_->waiting(what);
        wait.next_report_s = elapsed + kReportS;
    }
    const double sleep_s = std::min(kMaxSleepS, kMinSleepS + elapsed / 100);
    std::this_thread::sleep_for(std::chrono::duration<double>(sleep_s));
}

void Waiter::expire(Wait& wait, double elapsed, const std::function<std::string()>& describe) const {
    std::string answers;
    if (ask_) {
        if (!wait.missing) {
            wait.missing = ask_();
            wait.asked_s = elapsed;
        }
        const std::string missing = wait.missing();
        const double roll_call_s = std::min(kMaxRollCallS, kRollCallOfTimeout * timeout_s_);
        if (!missing.empty() && elapsed < wait.asked_s + roll_call_s) return;
        answers = missing.empty() ? "; all other ranks answer" : "; no answer from " + missing;
    }
    const std::string who = watchdog_ ? watchdog_->activity() : fmt::format("rank {}", world_rank());
    throw Error(ExitCode::peer_lost, fmt::format("{}: no answer for {:.0f} s; waiting for {}{}", who,
                                                 timeout_s_, named(describe), answers));
}

bool Waiter::poll() {
    bool under_way = false;
    for (const Poll& poll : polls_) under_way = poll() || under_way;
    return under_way;
}

void Waiter::sleep_until(double time_s) {
    while (poll() && now_s() + kWaiterPollS < time_s) comm::sleep_until(now_s() + kWaiterPollS);
    comm::sleep_until(time_s);
}

std::string Waiter::named(const std::function<std::string()>& describe) const {
    std::string text = describe();
    for (const Diagnostic& diagnostic : diagnostics_)
        if (const std::string more = diagnostic(); !more.empty()) text += "; " + more;
    return text;
}

void Waiter::end(const Wait& wait) const {
    if (watchdog_ && wait.next_report_s > kLongWaitS) watchdog_->waiting("");
}

}  // namespace maestro::comm
