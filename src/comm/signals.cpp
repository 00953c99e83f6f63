#include "comm/signals.hpp"

#include <atomic>
#include <csignal>

namespace maestro::comm {

namespace {
std::atomic<int> caught{0};  // a signal handler can reach nothing but a global
static_assert(std::atomic<int>::is_always_lock_free);

void remember(int signal) {
    caught.store(signal, std::memory_order_relaxed);
}
}  // namespace

void catch_stop_signals() {
    struct sigaction action = {};
    action.sa_handler = remember;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}) sigaction(signal, &action, nullptr);
}

int stop_signal() {
    return caught.load(std::memory_order_relaxed);
}

void clear_stop_signal() {
    caught.store(0, std::memory_order_relaxed);
}

}  // namespace maestro::comm
