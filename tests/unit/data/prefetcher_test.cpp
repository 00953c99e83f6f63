#include "data/prefetcher.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "base/error.hpp"
#include "unit/data/sample_writer.hpp"

namespace maestro::data {
namespace {

class PrefetcherTest : public testing::Test {
protected:
    static constexpr int kSamples = 200;
    PrefetcherTest() {
        std::string name = std::filesystem::temp_directory_path() / "maestro-prefetch-XXXXXX";
        folder_ = ::mkdtemp(name.data());
        data_test::SampleArrays arrays;
        for (int i = 0; i < kSamples; ++i) {
            std::vector<std::int32_t> ids{257, i % 256, 258};
            if (i % 2 == 0) ids.push_back(256);
            arrays.add(ids, i % 2 == 0 ? std::vector<std::array<std::int32_t, 2>>{{3 + i % 5, 4}}
                                       : std::vector<std::array<std::int32_t, 2>>{});
        }
        arrays.checksum[77] ^= 1;
        data_test::SampleFileWriter{}.write(folder_ / "samples.h5", arrays);
        file_ = std::make_unique<SampleFile>(folder_ / "samples.h5");
    }
    ~PrefetcherTest() override { std::filesystem::remove_all(folder_); }

    std::filesystem::path folder_;
    std::unique_ptr<SampleFile> file_;
};

TEST_F(PrefetcherTest, HandsOutSamplesInAnyOrder) {
    Prefetcher prefetcher(*file_);
    for (int step = 0; step < 5; ++step) {
        prefetcher.start({3, 0, 42, 199});
        for (const std::int64_t id : {199, 3, 42, 0}) {
            const Sample& sample = prefetcher.get(id);
            EXPECT_EQ(sample.id, id);
            EXPECT_EQ(sample.tokens[1], id % 256);
            EXPECT_EQ(sample.pictures.size(), id % 2 == 0 ? 1u : 0u);
        }
        for (const std::int64_t id : {3, 0, 42, 199}) prefetcher.drop(id);
    }
}

TEST_F(PrefetcherTest, HoldsASampleUntilItsLastDrop) {
    Prefetcher prefetcher(*file_);
    prefetcher.start({5, 5});
    prefetcher.start({5});
    prefetcher.drop(5);
    prefetcher.drop(5);
    EXPECT_EQ(prefetcher.get(5).id, 5);
    prefetcher.drop(5);
    prefetcher.drop(5);
    EXPECT_THROW(prefetcher.get(5), Error);
    prefetcher.start({5});
    EXPECT_EQ(prefetcher.get(5).id, 5);
}

TEST_F(PrefetcherTest, ThrowsInGetWhatReadingThrew) {
    Prefetcher prefetcher(*file_);
    prefetcher.start({76, 77, 78});
    EXPECT_EQ(prefetcher.get(78).id, 78);
    try {
        prefetcher.get(77);
        ADD_FAILURE() << "read";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::bad_data);
    }
    EXPECT_EQ(prefetcher.get(76).id, 76);
}

TEST_F(PrefetcherTest, StopsWithWorkLeft) {
    std::vector<std::int64_t> all(kSamples);
    for (int i = 0; i < kSamples; ++i) all[static_cast<std::size_t>(i)] = i;
    for (int i = 0; i < 20; ++i) {
        Prefetcher prefetcher(*file_);
        prefetcher.start(all);
        for (const std::int64_t id : all)
            if (id % 3 == 0) prefetcher.drop(id);
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

}  // namespace
}  // namespace maestro::data
