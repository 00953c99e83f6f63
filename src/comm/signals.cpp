#include "comm/signals.hpp"

#include <array>
#include <atomic>
#include <csignal>
#include <ctime>

namespace maestro::comm {

namespace {

constexpr std::array kSignals = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};

std::atomic<int> caught{0};  // a signal handler can reach nothing but a global
static_assert(std::atomic<int>::is_always_lock_free);

void remember(int signal) {
    caught.store(signal, std::memory_order_relaxed);
}

sigset_t all() {
    sigset_t set;
    sigemptyset(&set);
    for (int signal : kSignals) sigaddset(&set, signal);
    return set;
}

}  // namespace

void catch_stop_signals() {
    struct sigaction action = {};
    action.sa_handler = remember;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    for (int signal : kSignals) sigaction(signal, &action, nullptr);
    // oneDNN 2.6 computes some fp32 GEMMs (inner length 100, say) with the stack pointer in a buffer on
    // the heap: the frame of any handler that runs then overwrites what lies below the buffer. So this
    // thread, and those that it starts later, take none of these signals: they stay pending, or go to a
    // thread of MPI.
    const sigset_t set = all();
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

int stop_signal() {
    if (const int signal = caught.load(std::memory_order_relaxed)) return signal;
    sigset_t pending;
    sigpending(&pending);
    for (int signal : kSignals)
        if (sigismember(&pending, signal) == 1) return signal;
    return 0;
}

void clear_stop_signal() {
    const sigset_t set = all();
    const timespec at_once{};
    while (sigtimedwait(&set, nullptr, &at_once) > 0) {
    }
    caught.store(0, std::memory_order_relaxed);
}

}  // namespace maestro::comm
