// Files that are cut, flipped, shortened or replaced.
#include <cstddef>
#include <vector>

#include "unit/data/sample_file_fixture.hpp"

namespace maestro::data {
namespace {

using SampleDamageTest = SampleFileTest;

TEST_F(SampleDamageTest, RefusesEveryTruncation) {
    write(small_file());
    for (auto length = std::filesystem::file_size(path_); length-- > 0;) {
        SCOPED_TRACE(length);
        std::filesystem::resize_file(path_, length);
        expect_bad();
        length -= std::min<std::uintmax_t>(length, 6);
    }
}

/// Whatever bit is flipped, a sample is never read with other contents.
TEST_F(SampleDamageTest, SurvivesEveryFlippedBit) {
    write(small_file());
    const std::string whole = bytes();
    std::vector<Sample> expected(3);
    std::vector<double> weights;
    std::uint64_t identity = 0;
    {
        const SampleFile file(path_);
        identity = file.identity();
        for (std::int64_t i = 0; i < 3; ++i) {
            file.read(i, expected[static_cast<std::size_t>(i)]);
            weights.push_back(file.index().weight(i));
        }
    }
    std::fstream stream(path_, std::ios::in | std::ios::out | std::ios::binary);
    const auto put = [&](std::size_t at, char byte) {
        stream.seekp(static_cast<std::streamoff>(at)).put(byte).flush();
    };
    int refused = 0;
    for (std::size_t bit = 0; bit < whole.size() * 8; bit += 3) {
        const std::size_t at = bit / 8;
        put(at, static_cast<char>(whole[at] ^ (1 << (bit % 8))));
        try {
            const SampleFile file(path_);
            ASSERT_EQ(file.size(), 3);
            ASSERT_EQ(file.identity(), identity) << "bit " << bit;
            for (std::size_t i = 0; i < 3; ++i) {
                Sample text, pixels;
                file.read(static_cast<std::int64_t>(i), text, SampleFields::text);
                ASSERT_EQ(text.tokens, expected[i].tokens) << "bit " << bit;
                ASSERT_EQ(text.weights, expected[i].weights) << "bit " << bit;
                ASSERT_EQ(text.flags, expected[i].flags) << "bit " << bit;
                ASSERT_EQ(file.index().weight(static_cast<std::int64_t>(i)), weights[i]);
                file.read(static_cast<std::int64_t>(i), pixels, SampleFields::pixels);
                ASSERT_EQ(pixels.items.size(), expected[i].items.size());
                for (std::size_t j = 0; j < pixels.items.size(); ++j)
                    ASSERT_EQ(pixels.items[j].data, expected[i].items[j].data) << "bit " << bit;
            }
        } catch (const Error& error) {
            ASSERT_EQ(error.code(), ExitCode::bad_data) << error.what();
            ++refused;
        }
        put(at, whole[at]);
    }
    EXPECT_GT(refused, 1000);
}

TEST_F(SampleDamageTest, NoticesAFileThatShrinksDuringTheRun) {
    write(small_file());
    const SampleFile file(path_);
    std::filesystem::resize_file(path_, 100);
    Sample sample;
    try {
        file.read(1, sample);
        ADD_FAILURE() << "read";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::bad_data);
        EXPECT_THAT(error.what(), HasSubstr("shorter"));
    }
}

TEST_F(SampleDamageTest, KeepsReadingAFileThatWasReplaced) {
    write(small_file());
    const SampleFile file(path_);
    SampleArrays other;
    other.add({257, 'q'});
    const auto kept = path_;
    path_ = folder_ / "other.h5";
    write(other);
    std::filesystem::rename(path_, kept);
    Sample sample;
    file.read(0, sample);
    EXPECT_THAT(sample.tokens, ElementsAre(257, 'a', 'b', 258));
}

}  // namespace
}  // namespace maestro::data
