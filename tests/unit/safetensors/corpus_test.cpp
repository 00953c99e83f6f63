// Replays the corpus of the libFuzzer target without libFuzzer.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "fuzz/safetensors_fuzz.cpp"
#include "unit/safetensors/golden.hpp"

namespace {

void replay(const std::string& bytes) {
    EXPECT_EQ(LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()), 0);
}

TEST(SafetensorsCorpus, ReplaysWithoutCrash) {
    int replayed = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator(MAESTRO_SOURCE_DIR "/tests/fuzz/corpus/safetensors")) {
        SCOPED_TRACE(entry.path().string());
        replay(maestro::safetensors_test::bytes_of(entry.path()));
        ++replayed;
    }
    EXPECT_GE(replayed, 8);
}

/// Every file that a single wrong byte makes of a good one.
TEST(SafetensorsCorpus, DamageOfOneByteIsReadOrRefused) {
    for (const char* name : {"types", "unaligned"}) {
        const auto path = maestro::safetensors_test::kGolden / (std::string(name) + ".safetensors");
        const std::string good = 'R' + maestro::safetensors_test::bytes_of(path);
        for (std::size_t i = 1; i < good.size(); ++i) {
            std::string damaged = good;
            damaged[i] = static_cast<char>(damaged[i] ^ (1 << i % 8));
            replay(damaged);
            replay(good.substr(0, i));
        }
    }
}

}  // namespace
