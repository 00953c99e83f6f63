#include "comm/signals.hpp"

#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <utility>

namespace maestro::comm {

namespace {

constexpr std::array kSignals = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
constexpr unsigned kEndS = 10;  ///< seconds that an action has to end the process

std::atomic<pthread_t> receiver{};  // a signal handler can reach nothing but globals
std::atomic<bool> receives{false};
static_assert(std::atomic<pthread_t>::is_always_lock_free);

void pass_on(int signal) {
    if (receives) pthread_kill(receiver, signal);
}

bool is_gentle(int signal) {
    return signal == SIGUSR1 || signal == SIGUSR2;
}

/// In the calling thread.
void set_default(int signal) {
    std::signal(signal, SIG_DFL);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

}  // namespace

StopSignals::StopSignals(Action end) : end_(std::move(end)) {
    sigset_t set;
    sigemptyset(&set);
    for (int signal : kSignals) {
        struct sigaction inherited = {};
        sigaction(signal, nullptr, &inherited);
        if (signal == SIGHUP && inherited.sa_handler == SIG_IGN) {  // started by nohup
            ignores_hup_ = true;
            continue;
        }
        caught_.push_back(signal);
        sigaddset(&set, signal);
    }
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    thread_ = std::thread([this] { run(); });
    receiver = thread_.native_handle();
    receives = true;
    catch_again();
}

void StopSignals::catch_again() {
    const std::lock_guard lock(mutex_);
    if (ending_) return;
    struct sigaction action = {};
    action.sa_handler = pass_on;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    for (int signal : caught_) sigaction(signal, &action, nullptr);
    if (ignores_hup_) std::signal(SIGHUP, SIG_IGN);
}

StopSignals::~StopSignals() {
    receives = false;
    stop_ = true;
    pthread_kill(thread_.native_handle(), SIGUSR2);
    thread_.join();
}

void StopSignals::hold(Action notice) {
    std::unique_lock lock(mutex_);
    while (ending_ || notifying_) {
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        lock.lock();
    }
    held_ = true;
    notice_ = std::move(notice);
}

void StopSignals::run() {
    sigset_t accepted;
    sigemptyset(&accepted);
    for (int signal : caught_) sigaddset(&accepted, signal);
    while (true) {
        int signal = 0;
        if (sigwait(&accepted, &signal) != 0) continue;
        if (stop_) return;
        std::unique_lock lock(mutex_);
        if (!held_) {
            ending_ = true;
            lock.unlock();
            for (int each : caught_) set_default(each);
            alarm(kEndS);
            end_(signal);
            raise(signal);
        }
        const bool first = received_ == 0 || !is_gentle(signal);
        if (received_ == 0) received_ = signal;
        if (!is_gentle(signal))
            for (int each : caught_)
                if (!is_gentle(each) && sigismember(&accepted, each) == 1) {
                    sigdelset(&accepted, each);
                    set_default(each);
                }
        const Action notice = first ? notice_ : Action();
        if (!notice) continue;
        notifying_ = true;
        lock.unlock();
        notice(signal);
        lock.lock();
        notifying_ = false;
    }
}

std::string name_of_signal(int signal) {
    switch (signal) {
        case SIGTERM:
            return "SIGTERM";
        case SIGINT:
            return "SIGINT";
        case SIGHUP:
            return "SIGHUP";
        case SIGUSR1:
            return "SIGUSR1";
        default:
            return "SIGUSR2";
    }
}

}  // namespace maestro::comm
