#include "comm/signals.hpp"

#include <gtest/gtest.h>

#include <csignal>

namespace maestro::comm {
namespace {

TEST(Signals, AreRememberedAndDoNotEndTheProcess) {
    catch_stop_signals();
    clear_stop_signal();
    EXPECT_EQ(stop_signal(), 0);
    for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}) {
        std::raise(signal);
        EXPECT_EQ(stop_signal(), signal);
        clear_stop_signal();
        EXPECT_EQ(stop_signal(), 0);
    }
}

}  // namespace
}  // namespace maestro::comm
