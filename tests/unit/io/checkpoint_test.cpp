#include "io/checkpoint.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.hpp"
#include "io/exit_report.hpp"
#include "io/hdf5.hpp"
#include "io/run_directory.hpp"
#include "support/scratch_folder.hpp"

namespace maestro::io {
namespace {

namespace fs = std::filesystem;

class Run : public testing::Test {
protected:
    void SetUp() override { prepare_run_directory(run_, false); }

    fs::path save(std::int64_t step, std::int64_t keep = 2) {
        const float base = static_cast<float>(step);
        const std::vector<float> weight{base, 2, 3, 4, 5, 6}, first{1, 1, 1, 1, 1, base}, second(6, 0.5f),
            frozen{7, 8};
        const std::vector<StoredParameter> parameters{
            {"layers.0.weight", {2, 3}, weight.data(), first.data(), second.data()},
            {"teacher_head.weight", {2}, frozen.data()}};
        const fs::path partial = begin_checkpoint(run_, step);
        std::vector<ManifestEntry> entries{write_section(partial, "language", step, parameters)};
        entries.push_back(write_train_state(
            partial, {.step = step,
                      .deck = "deck",
                      .settings = {{"optimizer.clip", "1"}, {"run.name", "a \"name\"\nof two lines"}},
                      .samples = 0xfedcba9876543210,
                      .rows = {.steps = {{step, 0.5, 9, 1, 2, 3}},
                               .tasks = {{.rank = 3, .step = step}},
                               .assignment = {{.step = step, .section = 1, .sample = 40 + step}}}}));
        return finish_checkpoint(partial, entries, keep);
    }
    static ExitCode code_of(const std::function<void()>& action) {
        try {
            action();
        } catch (const Error& error) {
            return error.code();
        }
        return ExitCode::done;
    }

    testing_support::ScratchFolder scratch_;
    const fs::path run_ = scratch_.path() / "run";
};

TEST_F(Run, ComesBackAsItWasSaved) {
    const fs::path checkpoint = save(12);
    EXPECT_EQ(checkpoint.filename(), "step-000012");
    EXPECT_EQ(find_checkpoint(run_), checkpoint);
    EXPECT_EQ(find_checkpoint(checkpoint), checkpoint);
    EXPECT_THAT(read_parameter(checkpoint, "language", "layers.0.weight", {2, 3}, Stored::weight),
                testing::ElementsAre(12, 2, 3, 4, 5, 6));
    EXPECT_THAT(read_parameter(checkpoint, "language", "layers.0.weight", {2, 3}, Stored::first),
                testing::ElementsAre(1, 1, 1, 1, 1, 12));
    EXPECT_TRUE(has_parameter(checkpoint, "language", "teacher_head.weight"));
    EXPECT_FALSE(has_parameter(checkpoint, "language", "nothing"));
    EXPECT_THAT(sections_of(checkpoint), testing::ElementsAre("language"));
    const TrainState state = read_train_state(checkpoint);
    EXPECT_EQ(state.step, 12);
    EXPECT_EQ(state.deck, "deck");
    EXPECT_EQ(state.settings.size(), 2u);
    EXPECT_EQ(state.settings.at("run.name"), "a \"name\"\nof two lines");
    EXPECT_EQ(state.samples, 0xfedcba9876543210u);
    ASSERT_EQ(state.rows.steps.size(), 1u);
    EXPECT_EQ(state.rows.steps[0].tokens, 9);
    EXPECT_EQ(state.rows.tasks.at(0).rank, 3);
}

TEST_F(Run, RefusesOtherShapesAndMissingParameters) {
    const fs::path checkpoint = save(1);
    EXPECT_EQ(code_of([&] {
                  read_parameter(checkpoint, "language", "layers.0.weight", {3, 2}, Stored::weight);
              }),
              ExitCode::bad_data);
    EXPECT_EQ(code_of([&] {
                  read_parameter(checkpoint, "language", "layers.1.weight", {2, 3}, Stored::weight);
              }),
              ExitCode::bad_data);
    EXPECT_EQ(code_of([&] {
                  read_parameter(checkpoint, "vision", "layers.0.weight", {2, 3}, Stored::weight);
              }),
              ExitCode::bad_data);
}

TEST_F(Run, WalksBackToTheNewestWholeOne) {
    save(1);
    const fs::path second = save(2), third = save(3, 3);
    fs::create_directories(run_ / "checkpoints/step-000009.partial");
    EXPECT_EQ(find_checkpoint(run_), third);
    fs::resize_file(third / "language.h5", fs::file_size(third / "language.h5") - 1);
    EXPECT_EQ(find_checkpoint(run_), second);
    EXPECT_EQ(find_checkpoint(third), std::nullopt);
    {
        std::fstream file(second / "language.h5", std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(static_cast<std::streamoff>(fs::file_size(second / "language.h5") / 2));
        file.put('!');
    }
    const auto left = find_checkpoint(run_);
    ASSERT_TRUE(left.has_value());
    EXPECT_EQ(left->filename(), "step-000001");
    fs::remove(*left / "manifest.json");
    EXPECT_EQ(find_checkpoint(run_), std::nullopt);
}

TEST_F(Run, DoesNotPassOverAnotherVersion) {
    const fs::path manifest = save(3) / "manifest.json";
    std::ifstream in(manifest);
    std::string text{std::istreambuf_iterator<char>(in), {}};
    text.replace(text.find("\"version\": 2"), 12, "\"version\": 9");
    std::ofstream(manifest) << text;
    EXPECT_EQ(code_of([&] { find_checkpoint(run_); }), ExitCode::bad_data);
    fs::remove(manifest.parent_path() / "language.h5");
    EXPECT_EQ(find_checkpoint(run_), std::nullopt) << "what is not whole is nobody's";
}

TEST_F(Run, KeepsTwoAtLeast) {
    for (std::int64_t step = 1; step <= 5; ++step) save(step, 1);
    EXPECT_TRUE(fs::exists(run_ / "checkpoints/step-000005"));
    EXPECT_TRUE(fs::exists(run_ / "checkpoints/step-000004"));
    EXPECT_FALSE(fs::exists(run_ / "checkpoints/step-000003"));
}

TEST_F(Run, MetricsGrowAndAreCut) {
    const fs::path path = run_ / "metrics.h5";
    create_metrics(path, {.deck = "d", .environment = "e", .sections = {"vision", "language"}}, {});
    for (std::int64_t step = 1; step <= 3; ++step)
        append_metrics(path, {.steps = {{.step = step, .loss = 1.0 / static_cast<double>(step)}},
                              .tasks = {{.section = 1, .step = step}, {.section = 0, .step = step}},
                              .assignment = {{.step = step, .replica = 2, .sample = 7 * step}}});
    Rows rows = read_metrics(path);
    ASSERT_EQ(rows.steps.size(), 3u);
    EXPECT_EQ(rows.steps[2].loss, 1.0 / 3);
    EXPECT_EQ(rows.tasks.size(), 6u);
    ASSERT_EQ(rows.assignment.size(), 3u);
    EXPECT_EQ(rows.assignment[1].sample, 14);
    EXPECT_EQ(rows.assignment[1].replica, 2);
    EXPECT_EQ(read_sections(path), (std::vector<std::string>{"vision", "language"}));
    rows.truncate(2);
    EXPECT_EQ(rows.assignment.size(), 2u);
    EXPECT_EQ(rows.steps.size(), 2u);
    EXPECT_EQ(rows.tasks.size(), 4u);
    std::ofstream(run_ / "junk.h5") << "no HDF5";
    EXPECT_EQ(code_of([&] { read_metrics(run_ / "junk.h5"); }), ExitCode::bad_data);
}

TEST_F(Run, HoldsTheEnvironmentOfManyRanks) {
    const std::string environment(300'000, 'e');
    create_metrics(run_ / "metrics.h5", {.deck = "deck", .environment = environment, .sections = {}}, {});
    const Handle file = open_file(run_ / "metrics.h5", false);
    EXPECT_EQ(read_text_attribute(file, "environment"), environment);
}

TEST_F(Run, ARunIsNotOverwritten) {
    EXPECT_FALSE(holds_run(run_));
    save(1);
    EXPECT_TRUE(holds_run(run_));
    EXPECT_EQ(code_of([&] { prepare_run_directory(run_, false); }), ExitCode::cannot_create);
    prepare_run_directory(run_, true);
    std::ofstream(run_ / "file") << "x";
    EXPECT_EQ(code_of([&] { prepare_run_directory(run_ / "file/run", false); }), ExitCode::cannot_create);
    EXPECT_EQ(code_of([&] { check_free_space(run_, std::uint64_t{1} << 60); }), ExitCode::io_error);
}

TEST_F(Run, TellsHowItEnded) {
    EXPECT_TRUE(write_exit_report(
        run_, {.code = 76, .reason = "rank 2 \"hangs\"", .rank = 1, .host = "a", .step = 5}));
    std::ifstream file(run_ / "exit.json");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    EXPECT_THAT(text, testing::HasSubstr("\"code\": 76"));
    EXPECT_THAT(text, testing::HasSubstr("rank 2 \\\"hangs\\\""));
    EXPECT_FALSE(write_exit_report(run_ / "nowhere", {}));
}

}  // namespace
}  // namespace maestro::io
