// Replays the corpus of the libFuzzer target for config.json without libFuzzer, and damages good files.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/text_file.hpp"
#include "fuzz/config_fuzz.cpp"

namespace {

namespace fs = std::filesystem;

const fs::path kCorpus = MAESTRO_SOURCE_DIR "/tests/fuzz/corpus/config";

void replay(const std::string& bytes) {
    EXPECT_EQ(LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()), 0);
}

TEST(ConfigCorpus, ReplaysWithoutCrash) {
    int replayed = 0;
    for (const auto& entry : fs::directory_iterator(kCorpus)) {
        SCOPED_TRACE(entry.path().string());
        replay(*maestro::read_text_file(entry.path()));
        ++replayed;
    }
    EXPECT_GE(replayed, 19);
}

/// Every file that a single wrong byte makes of a good one, and its beginnings.
TEST(ConfigCorpus, DamageOfOneByteIsReadOrRefused) {
    for (const char* file : {"qwen3_vl_4.57", "qwen3_moe"}) {
        const std::string good = *maestro::read_text_file(kCorpus / file);
        for (std::size_t i = 0; i < good.size(); ++i) {
            std::string damaged = good;
            damaged[i] = static_cast<char>(damaged[i] ^ (1 << i % 8));
            replay(damaged);
            replay(good.substr(0, i));
        }
    }
}

/// Copying and printing a value takes stack for each of its levels.
TEST(ConfigCorpus, ManyLevelsAreRefused) {
    const auto nested = [](const std::string& key, std::size_t levels) {
        const std::string lists = std::string(levels, '[') + std::string(levels, ']');
        return "{\"model_type\":\"qwen3_vl\",\"" + key + "\":" + lists + "}";
    };
    try {
        maestro::families::read_config(nested("layer_types", 40), "config.json", "language");
        FAIL() << "40 levels are read";
    } catch (const maestro::Error& error) {
        ASSERT_NE(std::string(error.what()).find("more than 16 levels"), std::string::npos)
            << "40 levels are read: " << error.what();
    }
    for (const char* key : {"other", "layer_types", "text_config"}) replay(nested(key, 400'000));
}

}  // namespace
