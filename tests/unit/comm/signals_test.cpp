#include "comm/signals.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>
#include <vector>

namespace maestro::comm {
namespace {

template <class Ready>
void await(Ready&& ready) {
    for (int i = 0; i < 2000 && !ready(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_TRUE(ready());
}

TEST(StopSignals, AreRememberedOnceTheyAreHeld) {
    for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}) {
        std::atomic<int> noticed = 0;
        StopSignals signals([](int) { FAIL(); });
        signals.hold([&](int each) { noticed = each; });
        EXPECT_EQ(signals.received(), 0);
        kill(getpid(), signal);
        await([&] { return noticed == signal; });
        EXPECT_EQ(signals.received(), signal);
    }
}

/// Runs `body` in a child, whose StopSignals ends it with 100 + signal.
template <class Body>
void in_child(Body&& body) {
    StopSignals signals([](int signal) { _exit(100 + signal); });
    body(signals);
    std::this_thread::sleep_for(std::chrono::seconds(2));
    _exit(1);
}

TEST(StopSignalsDeathTest, EndTheProcessBeforeAndTheSecondTime) {
    testing::GTEST_FLAG(death_test_style) = "threadsafe";
    EXPECT_EXIT(in_child([](StopSignals&) { kill(getpid(), SIGHUP); }), testing::ExitedWithCode(100 + SIGHUP),
                "");
    EXPECT_EXIT(in_child([](StopSignals& signals) {
                    std::atomic<int> noticed = 0;
                    signals.hold([&](int signal) { noticed = signal; });
                    for (int gentle : {SIGUSR1, SIGUSR2, SIGUSR1}) {
                        kill(getpid(), gentle);
                        await([&] { return noticed == SIGUSR1; });
                    }
                    kill(getpid(), SIGTERM);
                    await([&] { return noticed == SIGTERM; });
                    kill(getpid(), SIGINT);
                }),
                testing::KilledBySignal(SIGINT), "");
}

}  // namespace
}  // namespace maestro::comm
