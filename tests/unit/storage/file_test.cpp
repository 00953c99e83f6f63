#include "storage/file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <numeric>
#include <vector>

#include "base/error.hpp"
#include "support/faulty_storage.hpp"
#include "support/scratch_folder.hpp"

namespace maestro::storage {
namespace {

using testing_support::faulty_storage;

struct CountingPulse final : Pulse {
    void beat() noexcept override { ++beats; }
    int beats = 0;
};

class FileTest : public testing::Test {
protected:
    ~FileTest() override { faulty_storage.reset(); }

    Descriptor create(const char* name) { return {folder_.path() / name, O_RDWR | O_CREAT | O_TRUNC}; }
    static struct stat status_of(const Descriptor& file) {
        struct stat status = {};
        EXPECT_EQ(::fstat(file.get(), &status), 0);
        return status;
    }

    testing_support::ScratchFolder folder_;
    CountingPulse pulse_;
};

TEST_F(FileTest, ReadsWhatWasWritten) {
    const Descriptor file = create("a");
    std::vector<char> written((3 << 20) + 17), read(written.size() + 10);
    std::iota(written.begin(), written.end(), char{0});
    ASSERT_TRUE(write_at(file.get(), written.data(), written.size(), 5, pulse_));
    EXPECT_EQ(pulse_.beats, 4);
    const auto bytes = static_cast<std::int64_t>(written.size());
    EXPECT_EQ(read_at(file.get(), read.data(), read.size(), 5, pulse_), bytes);  // the file ends before
    read.resize(written.size());
    EXPECT_EQ(read, written);
    EXPECT_GE(pulse_.beats, 8);
}

TEST_F(FileTest, TriesAReadAgain) {
    const Descriptor file = create("a");
    ASSERT_TRUE(write_at(file.get(), "text", 4, 0, pulse_));
    char read[4];
    for (const int error : {EIO, ESTALE, EINTR}) {
        faulty_storage.error = error;
        faulty_storage.failing_reads = 2;
        EXPECT_EQ(read_at(file.get(), read, 4, 0, pulse_), 4);
    }
    faulty_storage.error = EIO;
    faulty_storage.failing_reads = 100;
    EXPECT_EQ(read_at(file.get(), read, 4, 0, pulse_), -1);
    EXPECT_EQ(errno, EIO);
    EXPECT_EQ(faulty_storage.failing_reads, 96) << "it is tried four times";
}

TEST_F(FileTest, ReservesSpace) {
    const Descriptor file = create("a");
    constexpr std::uint64_t kBytes = 3 << 20;
    reserve_space(folder_.path() / "a", file, kBytes, pulse_);
    EXPECT_EQ(status_of(file).st_size, kBytes);
    EXPECT_GE(status_of(file).st_blocks * 512, static_cast<blkcnt_t>(kBytes));
}

/// posix_fallocate would write into every block there.
TEST_F(FileTest, SetsOnlyTheSizeWhereSpaceCannotBeReserved) {
    faulty_storage.reserves = false;
    const Descriptor file = create("a");
    constexpr std::uint64_t kBytes = 64 << 20;
    reserve_space(folder_.path() / "a", file, kBytes, pulse_);
    EXPECT_EQ(status_of(file).st_size, kBytes);
    EXPECT_EQ(status_of(file).st_blocks, 0);
    try {
        reserve_space(folder_.path() / "a", file, std::uint64_t{1} << 61, pulse_);
        ADD_FAILURE() << "more than there is";
    } catch (const NoRoom& error) {
        EXPECT_EQ(error.code(), ExitCode::io_error);
        EXPECT_NE(error.fault().find("no room"), std::string::npos) << error.what();
    }
    EXPECT_EQ(status_of(file).st_size, kBytes);
}

TEST_F(FileTest, TellsAMissingFileFromFailingStorage) {
    try {
        open_to_read(folder_.path() / "none");
        ADD_FAILURE() << "opened";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::bad_data);
    }
    EXPECT_FALSE(open_retrying(folder_.path() / "none", O_RDONLY));
    EXPECT_TRUE(is_lasting(ENOENT));
    EXPECT_FALSE(is_lasting(EIO));
}

}  // namespace
}  // namespace maestro::storage
