// Which tokens end answers, in samples and in the files of a model's folder.
#include "train/setup/answer_ends.hpp"

#include <gtest/gtest.h>

#include "base/text_file.hpp"
#include "support/errors.hpp"
#include "support/scratch_folder.hpp"
#include "unit/data/sample_writer.hpp"

namespace maestro::train {
namespace {

using Ids = std::vector<std::int32_t>;

TEST(AnswerEnds, AreTheSpecialTokensBehindWhichOnlySpaceFollows) {
    constexpr std::int32_t kPicture = 256, kBegin = 257, kEnd = 258, kUnknown = 259;
    const testing_support::ScratchFolder scratch;
    const auto ends_of = [&](const std::vector<Ids>& samples,
                             const std::vector<std::array<std::int32_t, 2>>& shapes) {
        data_test::SampleArrays arrays;
        for (const Ids& ids : samples) arrays.add(ids, shapes);
        const auto path = scratch.path() / "samples.h5";
        data_test::SampleFileWriter().write(path, arrays);
        Pulse pulse;
        return trained_ends(data::SampleFile(path), pulse);
    };
    EXPECT_EQ(ends_of({{kBegin, 'a', 'b'}, {kBegin, kEnd, 'a', '\n'}}, {}), Ids());
    EXPECT_EQ(ends_of({{kBegin, 'a', kEnd, '\n'}, {kBegin, 'b', kUnknown}}, {}), (Ids{kEnd, kUnknown}));
    EXPECT_EQ(ends_of({{kBegin, 'a', kUnknown, kPicture, 'b', kEnd}}, {{{1, 1}}}), Ids{kEnd})
        << "before a picture";
    // Every answer of 1,000 samples among more, the first included.
    std::vector<Ids> many(2500, Ids{kBegin, 'a', kEnd});
    many.front().back() = kUnknown;
    EXPECT_EQ(ends_of(many, {}), (Ids{kEnd, kUnknown}));
}

TEST(AnswerEnds, ExtendTheConfigurationOfGeneration) {
    const testing_support::ScratchFolder scratch;
    const auto& folder = scratch.path();
    Pulse pulse;
    const auto write = [&](const char* name, const char* text) {
        write_text_file((folder / name).string(), text);
    };
    EXPECT_EQ(missing_ends(folder, Ids{3}, pulse), Ids{3});
    write("config.json", R"({"eos_token_id": 3, "bos_token_id": 1, "pad_token_id": null})");
    EXPECT_EQ(missing_ends(folder, Ids{3}, pulse), Ids());
    EXPECT_EQ(missing_ends(folder, {}, pulse), Ids()) << "not known";
    EXPECT_EQ(generation_config(folder, {5}, pulse),
              "{\n  \"bos_token_id\": 1,\n  \"eos_token_id\": [\n    3,\n    5\n  ]\n}\n");
    write("generation_config.json", R"({"top_p": 0.7, "_from_model_config": true, "do_sample": true})");
    EXPECT_EQ(missing_ends(folder, Ids{3}, pulse), Ids{3}) << "transformers would not look into config.json";
    EXPECT_EQ(generation_config(folder, {3}, pulse),
              "{\n  \"top_p\": 0.7,\n  \"do_sample\": true,\n  \"eos_token_id\": 3\n}\n");
    write("generation_config.json", R"({"eos_token_id": [7, 5]})");
    EXPECT_EQ(ends_of_folder(folder, pulse), (Ids{7, 5}));
    EXPECT_EQ(missing_ends(folder, Ids{4, 5}, pulse), Ids{4});
    write("generation_config.json", "[]");
    EXPECT_EQ(testing_support::error_of([&] { generation_config(folder, {3}, pulse); }).code,
              ExitCode::bad_data);
}

}  // namespace
}  // namespace maestro::train
