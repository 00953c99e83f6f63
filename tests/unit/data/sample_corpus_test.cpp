// Replays the corpus of the libFuzzer target without libFuzzer.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "fuzz/sample_fuzz.cpp"

TEST(SampleCorpus, ReplaysWithoutCrash) {
    int replayed = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator(MAESTRO_SOURCE_DIR "/tests/fuzz/corpus/sample")) {
        SCOPED_TRACE(entry.path().string());
        std::ifstream stream(entry.path(), std::ios::binary);
        const std::vector<char> bytes{std::istreambuf_iterator<char>(stream), {}};
        EXPECT_EQ(LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()),
                  0);
        ++replayed;
    }
    EXPECT_GE(replayed, 5);
}
