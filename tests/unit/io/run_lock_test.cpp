#include "io/run_lock.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "support/errors.hpp"
#include "support/scratch_folder.hpp"

namespace maestro::io {
namespace {

namespace fs = std::filesystem;

TEST(RunLock, KeepsOthersOutAndNamesItsHolder) {
    const testing_support::ScratchFolder scratch;
    const fs::path run = scratch.path() / "a/run";
    {
        const RunLock lock(run);
        EXPECT_TRUE(lock.made_directory());
        EXPECT_EQ(lock.warning(), "");
        const auto error = testing_support::error_of([&] { const RunLock second(run); });
        EXPECT_EQ(error.code, ExitCode::cannot_create);
        EXPECT_THAT(error.what, testing::HasSubstr(std::to_string(getpid())));
        EXPECT_EQ(testing_support::error_of([&] { check_not_in_use(run); }).what, error.what);
        EXPECT_TRUE(fs::exists(run)) << "the second takes nothing away";
    }
    EXPECT_FALSE(fs::exists(run)) << "nothing was put into it";
    fs::create_directories(run);
    { const RunLock lock(run); }
    check_not_in_use(run);
    EXPECT_TRUE(fs::is_empty(run));
}

TEST(RunLock, DiesWithItsHolder) {
    const testing_support::ScratchFolder scratch;
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        const RunLock lock(scratch.path());
        char byte = 'x';
        if (write(ready[1], &byte, 1) != 1) _exit(1);
        for (;;) pause();
    }
    char byte = 0;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    const auto error = testing_support::error_of([&] { const RunLock second(scratch.path()); });
    EXPECT_THAT(error.what, testing::HasSubstr(std::to_string(child)));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const RunLock after(scratch.path());
    close(ready[0]);
    close(ready[1]);
}

TEST(RunLock, RefusesWhatCannotBeWritten) {
    const auto error = testing_support::error_of([] { const RunLock lock("/proc/nowhere"); });
    EXPECT_EQ(error.code, ExitCode::cannot_create);
}

}  // namespace
}  // namespace maestro::io
