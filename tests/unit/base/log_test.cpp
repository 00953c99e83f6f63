// Which processes print, and what is written to the file.
#include "base/log.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "support/errors.hpp"

namespace maestro {
namespace {

class Log : public testing::Test {
protected:
    ~Log() override {
        log::start(true);
        std::error_code ignored;
        std::filesystem::remove(path_, ignored);
    }
    std::string text() const {
        std::ifstream file(path_);
        return {std::istreambuf_iterator<char>(file), {}};
    }
    const std::filesystem::path path_ =
        testing::TempDir() + "maestro-log-" + std::to_string(getpid()) + ".txt";
};

TEST_F(Log, OneRankSpeaksAndAllMayReportErrors) {
    log::open_file(path_);
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    log::start(false);
    log::info("step {}", 1);
    log::write_error("rank 3: lost");
    log::start(true);
    log::info("step {}", 2);
    EXPECT_EQ(testing::internal::GetCapturedStdout(), "step 2\n");
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "rank 3: lost\n");
    log::flush();
    EXPECT_EQ(text().find("step 1"), std::string::npos);
    EXPECT_NE(text().find("rank 3: lost"), std::string::npos);
    EXPECT_NE(text().find("step 2"), std::string::npos);
}

TEST_F(Log, FileIsAppendedTo) {
    for (const char* line : {"first", "second"}) {
        log::open_file(path_);
        log::write_file(line);
        log::flush();
    }
    EXPECT_LT(text().find("first"), text().find("second"));
    EXPECT_NE(text().find("second"), std::string::npos);
}

TEST_F(Log, SaysWhichFileCannotBeOpened) {
    const auto error = testing_support::error_of([] { log::open_file(testing::TempDir()); });
    EXPECT_EQ(error.code, ExitCode::cannot_create);
    EXPECT_NE(error.what.find(testing::TempDir()), std::string::npos);
}

}  // namespace
}  // namespace maestro
