#include "comm/watchdog.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "comm/environment.hpp"

namespace maestro::comm {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

struct Watched {
    std::atomic<bool> aborted = false;
    std::string reason;
    Watchdog dog;
    explicit Watched(double timeout_s)
        : dog({timeout_s, 3, "node7", [this](const std::string& text) { reason = text; },
               [this] { aborted = true; }}) {}
    bool aborts_within(double seconds) {
        const double start = now_s();
        while (!aborted && now_s() - start < seconds) std::this_thread::sleep_for(20ms);
        return aborted;
    }
};

TEST(Watchdog, NamesWhatHangsAndWhatItWaitsFor) {
    Watched w(0.2);
    w.dog.doing("section language, forward of micro-batch 3 of step 12");
    w.dog.waiting("edge vision-language: sample 17 from rank 0");
    ASSERT_TRUE(w.aborts_within(16));  // a wait ends by itself first: the margin is 8 s
    EXPECT_THAT(w.reason, HasSubstr("rank 3 (node7), section language, forward of micro-batch 3 of step 12"));
    EXPECT_THAT(w.reason, HasSubstr("waiting for edge vision-language: sample 17 from rank 0"));
}

TEST(Watchdog, IsQuietWhileThereIsProgress) {
    Watched w(0.2);  // and the margin of 2 s
    for (int i = 0; i < 15; ++i) {
        w.dog.progress();
        std::this_thread::sleep_for(200ms);
    }
    EXPECT_FALSE(w.aborted);
    EXPECT_THAT(w.dog.activity(), HasSubstr("starting"));
}

TEST(Watchdog, RestsWhilePaused) {
    Watched w(0.1);
    w.dog.doing("writing a checkpoint");
    w.dog.pause();
    EXPECT_FALSE(w.aborts_within(3));
    w.dog.doing("section teacher, forward");
    EXPECT_TRUE(w.aborts_within(6));
}

}  // namespace
}  // namespace maestro::comm
