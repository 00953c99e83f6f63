#include "comm/watchdog.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>

namespace maestro::comm {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

/// A watchdog with a deadline of 5 s on a clock that the test sets.
struct Watched {
    std::atomic<double> now = 100;
    std::atomic<int> polls = 0;
    std::atomic<bool> aborted = false;
    std::string reason;
    Watchdog dog{{.timeout_s = 5,
                  .who = "rank 3 (node7)",
                  .on_hang = [this](const std::string& text) { reason = text; },
                  .abort = [this] { aborted = true; },
                  .clock =
                      [this] {
                          ++polls;
                          return now.load();
                      },
                  .poll_s = 0.001}};

    /// Returns whether the watchdog ends the job at this time: it is given two polls for it.
    bool aborts_after(double seconds) {
        now = now + seconds;
        const int before = polls;
        while (!aborted && polls < before + 2) std::this_thread::sleep_for(1ms);
        return aborted;
    }
};

TEST(Watchdog, NamesWhatHangsAndWhatItWaitsFor) {
    Watched w;
    w.dog.doing("section language, forward of micro-batch 3 of step 12");
    w.dog.waiting("edge vision-language: sample 17 from rank 0");
    EXPECT_FALSE(w.aborts_after(12.9)) << "the rank that is waited for has 8 s to report first";
    ASSERT_TRUE(w.aborts_after(0.2));
    EXPECT_THAT(w.reason, HasSubstr("rank 3 (node7), section language, forward of micro-batch 3 of step 12"));
    EXPECT_THAT(w.reason, HasSubstr("waiting for edge vision-language: sample 17 from rank 0"));
}

TEST(Watchdog, IsQuietWhileThereIsProgress) {
    Watched w;
    for (int i = 0; i < 10; ++i) {
        ASSERT_FALSE(w.aborts_after(6.9));
        w.dog.progress();
    }
    EXPECT_THAT(w.dog.activity(), HasSubstr("starting"));
    EXPECT_TRUE(w.aborts_after(7.1));
}

TEST(Watchdog, CountsAWaitsBeginningAndEndAsProgressButNotItsReports) {
    Watched w;
    w.dog.doing("section teacher, forward");
    EXPECT_FALSE(w.aborts_after(6));
    w.dog.waiting("edge teacher-student: a credit");
    EXPECT_FALSE(w.aborts_after(6));
    w.dog.waiting("");
    EXPECT_FALSE(w.aborts_after(6));
    w.dog.waiting("edge teacher-student: a credit");
    EXPECT_FALSE(w.aborts_after(12));
    w.dog.waiting("edge teacher-student: a credit");
    EXPECT_TRUE(w.aborts_after(2));
}

TEST(Watchdog, RestsWhilePaused) {
    Watched w;
    w.dog.doing("writing a checkpoint");
    w.dog.pause();
    EXPECT_FALSE(w.aborts_after(1000));
    w.dog.doing("section teacher, forward");
    EXPECT_TRUE(w.aborts_after(8));
}

}  // namespace
}  // namespace maestro::comm
