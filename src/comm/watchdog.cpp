#include "comm/watchdog.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "base/error.hpp"
#include "comm/environment.hpp"

namespace maestro::comm {

namespace {
constexpr auto kGrace = std::chrono::seconds(5);
// A wait that reaches its own deadline throws in the main thread, which then closes the run in order: the
// watchdog leaves it the time for that.
constexpr double kMarginS = 2.0;
// While a rank waits, the watchdog of the rank that it waits for should report first: it knows what hangs.
constexpr double kMarginWaitingS = 8.0;
}  // namespace

Watchdog::Watchdog(Settings settings) : settings_(std::move(settings)), since_s_(settings_.clock()) {
    thread_ = std::thread([this] { run(); });
}

Watchdog::~Watchdog() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
}

void Watchdog::doing(std::string what) {
    const std::lock_guard lock(mutex_);
    doing_ = std::move(what);
    waiting_.clear();
    since_s_ = settings_.clock();
    paused_ = false;
}

void Watchdog::progress() {
    const std::lock_guard lock(mutex_);
    since_s_ = settings_.clock();
}

void Watchdog::waiting(std::string for_what) {
    const std::lock_guard lock(mutex_);
    if (waiting_.empty() || for_what.empty()) since_s_ = settings_.clock();
    waiting_ = std::move(for_what);
}

void Watchdog::pause() {
    const std::lock_guard lock(mutex_);
    paused_ = true;
}

void Watchdog::identify(std::string who) {
    const std::lock_guard lock(mutex_);
    settings_.who = std::move(who);
}

void Watchdog::set_timeout(double timeout_s) {
    const std::lock_guard lock(mutex_);
    settings_.timeout_s = timeout_s;
}

std::string Watchdog::activity() const {
    const std::lock_guard lock(mutex_);
    return fmt::format("{}, {}", settings_.who, doing_.empty() ? "starting" : doing_);
}

void Watchdog::run() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
        wake_.wait_for(lock, std::chrono::duration<double>(settings_.poll_s));
        const double margin = waiting_.empty() ? kMarginS : kMarginWaitingS;
        const double silent_s = settings_.clock() - since_s_;
        if (stop_ || paused_ || silent_s < settings_.timeout_s + margin) continue;
        std::string reason = fmt::format("{}, {}: no progress for {:.0f} s", settings_.who,
                                         doing_.empty() ? "starting" : doing_, settings_.timeout_s);
        if (!waiting_.empty()) reason += "; waiting for " + waiting_;
        lock.unlock();
        end_world(reason);
        return;
    }
}

void Watchdog::end_world(const std::string& reason) {
    constexpr int code = static_cast<int>(ExitCode::peer_lost);
    const bool for_real = !settings_.abort;
    if (for_real)
        std::thread([] {
            std::this_thread::sleep_for(kGrace);
            _exit(code);
        }).detach();
    // Not through stdio: the main thread may hang inside it and hold its lock.
    const std::string line = "maestro: " + reason + "\n";
    if (::write(STDERR_FILENO, line.data(), line.size()) < 0) {
        // no one can read it
    }
    if (settings_.on_hang) settings_.on_hang(reason);
    if (for_real) abort_world(code);
    settings_.abort();
}

}  // namespace maestro::comm
