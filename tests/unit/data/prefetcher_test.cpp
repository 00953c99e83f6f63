#include "data/prefetcher.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "data/sample_file.hpp"
#include "support/faulty_storage.hpp"
#include "support/scratch_folder.hpp"
#include "unit/data/sample_writer.hpp"

namespace maestro::data {
namespace {

using testing_support::faulty_storage;

class PrefetcherTest : public testing::Test {
protected:
    static constexpr int kSamples = 200;
    PrefetcherTest() {
        data_test::SampleArrays arrays;
        for (int i = 0; i < kSamples; ++i) {
            std::vector<std::int32_t> ids{257, i % 256, 258};
            if (i % 2 == 0) ids.push_back(256);
            arrays.add(ids, i % 2 == 0 ? std::vector<std::array<std::int32_t, 2>>{{3 + i % 5, 4}}
                                       : std::vector<std::array<std::int32_t, 2>>{});
        }
        arrays.checksum[77] ^= 1;
        data_test::SampleFileWriter{}.write(folder_.path() / "samples.h5", arrays);
        file_ = std::make_shared<SampleFile>(folder_.path() / "samples.h5");
    }

    ~PrefetcherTest() override { faulty_storage.reset(); }

    testing_support::ScratchFolder folder_;
    std::shared_ptr<SampleFile> file_;
    Pulse silent_;
};

const Prefetcher::Settings kSettings{.bytes_ahead = 1 << 20};

TEST_F(PrefetcherTest, HandsOutRequestsInAnyOrder) {
    Prefetcher prefetcher(file_, kSettings, silent_);
    for (int step = 0; step < 5; ++step) {
        const std::vector<std::vector<std::int64_t>> requests{{3, 0}, {42}, {199, 3, 3}};
        std::vector<std::int64_t> tickets;
        for (const auto& ids : requests) tickets.push_back(prefetcher.start({.samples = ids}));
        for (const std::size_t r : {2, 0, 1}) {
            const auto samples = prefetcher.take(tickets[r]);
            ASSERT_EQ(samples.size(), requests[r].size());
            for (std::size_t i = 0; i < samples.size(); ++i) {
                const std::int64_t id = requests[r][i];
                EXPECT_EQ(samples[i].id, id);
                EXPECT_EQ(samples[i].tokens[1], id % 256);
                ASSERT_EQ(samples[i].items.size(), id % 2 == 0 ? 1u : 0u);
                if (id % 2 != 0) continue;
                EXPECT_EQ(samples[i].items[0].data.size(), static_cast<std::size_t>((3 + id % 5) * 4));
            }
        }
        EXPECT_THROW(prefetcher.take(tickets[0]), Error);  // taken before
    }
    EXPECT_THROW(prefetcher.take(99), Error);  // never started
}

TEST_F(PrefetcherTest, LeavesWhatNobodyReads) {
    Prefetcher prefetcher(file_, kSettings, silent_);
    const auto text = prefetcher.take(prefetcher.start({.samples = {4}, .fields = SampleFields::text}));
    ASSERT_EQ(text[0].items.size(), 1u);
    EXPECT_EQ(text[0].items[0].item.height, 7);
    EXPECT_TRUE(text[0].items[0].data.empty());
    EXPECT_EQ(text[0].tokens.size(), 4u);
    const auto pixels = prefetcher.take(prefetcher.start({.samples = {4}, .fields = SampleFields::pixels}));
    EXPECT_EQ(pixels[0].items[0].data.size(), 28u);
    EXPECT_TRUE(pixels[0].tokens.empty());
    // Four tokens of 9 bytes, and 7 x 4 pixels.
    EXPECT_EQ(file_->bytes(4, SampleFields::all) - file_->bytes(4, SampleFields::text), 28);
    EXPECT_EQ(file_->bytes(4, SampleFields::all) - file_->bytes(4, SampleFields::pixels), 36);
}

TEST_F(PrefetcherTest, GoesOnWhereOneRequestIsMoreThanItMayHold) {
    for (const std::int64_t ahead :
         {std::int64_t{0}, std::int64_t{1}, file_->bytes(0, SampleFields::all) * 3}) {
        Prefetcher prefetcher(file_, {.bytes_ahead = ahead}, silent_);
        std::vector<std::int64_t> tickets;
        for (int i = 0; i < 60; ++i) tickets.push_back(prefetcher.start({.samples = {i, i + 1}}));
        // Against the order of reading, then along it.
        for (int i = 59; i >= 30; --i)
            EXPECT_EQ(prefetcher.take(tickets[static_cast<std::size_t>(i)])[1].id, i + 1);
        for (int i = 0; i < 30; ++i)
            EXPECT_EQ(prefetcher.take(tickets[static_cast<std::size_t>(i)])[0].id, i);
    }
}

TEST_F(PrefetcherTest, ThrowsInTakeWhatReadingThrew) {
    for (const SampleFields fields : {SampleFields::all, SampleFields::text}) {
        Prefetcher prefetcher(file_, kSettings, silent_);
        const auto good = prefetcher.start({.samples = {76}, .fields = fields});
        const auto bad = prefetcher.start({.samples = {78, 77}, .fields = fields});
        try {
            prefetcher.take(bad);
            ADD_FAILURE() << "read";
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ExitCode::bad_data);
        }
        EXPECT_EQ(prefetcher.take(good)[0].id, 76);
    }
}

TEST_F(PrefetcherTest, StopsWithWorkLeft) {
    for (int i = 0; i < 20; ++i) {
        Prefetcher prefetcher(file_, kSettings, silent_);
        for (int id = 0; id < kSamples; ++id) prefetcher.start({.samples = {id}});
        EXPECT_EQ(prefetcher.take(i)[0].id, i);
    }
}

TEST_F(PrefetcherTest, ReadsFromSeveralThreadsAtOnce) {
    std::vector<std::thread> threads;
    std::atomic<int> wrong = 0;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {
            Sample sample;
            for (int i = t; i < kSamples; ++i) {
                if (i == 77) continue;
                file_->read(i, sample);
                if (sample.tokens[1] != i % 256) ++wrong;
            }
        });
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
}

struct RecordingPulse final : Pulse {
    void doing(const std::string& what) noexcept override { report = what; }
    void beat() noexcept override { ++beats; }
    std::string report;
    int beats = 0;
};

TEST_F(PrefetcherTest, TriesAFailedReadAgain) {
    Prefetcher prefetcher(file_, kSettings, silent_);
    faulty_storage.failing_reads = 2;
    EXPECT_EQ(prefetcher.take(prefetcher.start({.samples = {4}}))[0].id, 4);
    faulty_storage.failing_reads = 1000;
    try {
        prefetcher.take(prefetcher.start({.samples = {5}}));
        ADD_FAILURE() << "read";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::io_error);
        EXPECT_NE(std::string(error.what()).find("samples.h5: dataset 'tokens'"), std::string::npos)
            << error.what();
    }
}

/// Storage that takes longer than the deadline for a request, but goes on, is no hang.
TEST_F(PrefetcherTest, WaitsForASlowReadThatMakesProgress) {
    RecordingPulse pulse;
    int advanced = 0;
    Prefetcher prefetcher(file_, {.timeout_s = 0.5, .advance = [&] { return ++advanced < 100; }}, pulse);
    faulty_storage.read_ms = 100;
    const auto samples = prefetcher.take(prefetcher.start({.samples = {1, 3, 5, 7}}));  // 3 reads each
    EXPECT_GT(advanced, 100) << "what other ranks need goes on meanwhile, and often while it is under way";
    EXPECT_EQ(samples[3].id, 7);
    EXPECT_GT(pulse.beats, 1);
    EXPECT_EQ(pulse.report.substr(0, 15), "reading sample ") << "after a second the watchdog is told";
}

/// The ranks that wait for this one hear from it once more, and so give up after it.
TEST_F(PrefetcherTest, TellsThePulseThatReadsHaveStopped) {
    struct StoppingPulse final : Pulse {
        void doing(const std::string& what) noexcept override { reports.push_back(what); }
        void beat() noexcept override {
            if (reports.size() == 2) faulty_storage.reads_hang = true;
        }
        std::vector<std::string> reports;
    } pulse;
    {
        Prefetcher prefetcher(file_, {.timeout_s = 1.5}, pulse);
        faulty_storage.read_ms = 100;
        const auto ticket = prefetcher.start({.samples = {1, 3, 5, 7, 9, 11, 13, 15}});  // 3 reads each
        EXPECT_THROW(prefetcher.take(ticket), Error);
    }
    ASSERT_GE(pulse.reports.size(), 3u);
    EXPECT_EQ(pulse.reports.back(), pulse.reports[pulse.reports.size() - 2]);
    faulty_storage.reads_hang = false;
    while (file_.use_count() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST_F(PrefetcherTest, NamesTheSampleOfAReadThatHangs) {
    const auto begin = std::chrono::steady_clock::now();
    {
        Prefetcher prefetcher(file_, {.timeout_s = 0.3}, silent_);
        faulty_storage.reads_hang = true;
        try {
            prefetcher.take(prefetcher.start({.samples = {17}}));
            ADD_FAILURE() << "read";
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ExitCode::peer_lost);
            const std::string expected = "reading sample 17 of " + (folder_.path() / "samples.h5").string();
            EXPECT_EQ(std::string(error.what()).substr(0, expected.size()), expected);
        }
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30))
        << "the end waits for the read";
    EXPECT_GT(file_.use_count(), 1) << "the thread has let go of a file that it reads";
    faulty_storage.reads_hang = false;
    while (file_.use_count() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace
}  // namespace maestro::data
