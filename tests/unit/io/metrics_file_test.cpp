#include "io/metrics_file.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <csignal>
#include <fstream>

#include "io/hdf5_update.hpp"
#include "storage/file.hpp"
#include "support/errors.hpp"
#include "support/scratch_folder.hpp"

namespace maestro::io {
namespace {

namespace fs = std::filesystem;

class Metrics : public testing::Test {
protected:
    void SetUp() override {
        create_metrics(path_, {.deck = "d", .environment = "e", .sections = {"vision", "language"}}, {},
                       quiet_);
    }
    Rows rows_of(std::int64_t step) const {
        return {
            .steps = {{.step = step, .loss = 1.0 / static_cast<double>(step)}},
            .tasks = {{.section = 1, .step = step, .weights_s = 0.5}, {.section = 0, .step = step}},
            .syncs = {{.section = 1,
                       .replica = 2,
                       .stage = 3,
                       .rank = 4,
                       .step = step,
                       .kind = 1,
                       .groups = 5,
                       .start_s = 6,
                       .end_s = 7,
                       .busy_s = 0.25}},
            .assignment = {{.step = step, .replica = 2, .sample = 7 * step}},
            .experts =
                {{.step = step, .section = 1, .layer = 2, .largest = 3.5, .smallest = 0.5, .entropy = 0.75},
                 {.step = step, .section = 1, .layer = 3}},
            .losses = {loss_row(step, 1, "cross_entropy", 0.5), loss_row(step, 2, "exactly 16 bytes", 0.25)}};
    }
    std::string bytes() const {
        std::ifstream file(path_, std::ios::binary);
        return {std::istreambuf_iterator<char>(file), {}};
    }

    Pulse quiet_;
    testing_support::ScratchFolder scratch_;
    const fs::path path_ = scratch_.path() / "metrics.h5";
};

TEST(TaskRow, WaitingForWeightsIsNoWork) {
    EXPECT_EQ((TaskRow{.start_s = 1, .end_s = 3, .wait_s = 7, .weights_s = 0.5}.work_s()), 1.5);
    EXPECT_EQ((TaskRow{.start_s = 1, .end_s = 1.5, .weights_s = 0.5000001}.work_s()), 0);
}

TEST_F(Metrics, GrowAndAreCut) {
    for (std::int64_t step = 1; step <= 3; ++step) append_metrics(path_, rows_of(step), quiet_);
    const Rows rows = read_metrics(path_);
    ASSERT_EQ(rows.steps.size(), 3u);
    EXPECT_EQ(rows.steps[2].loss, 1.0 / 3);
    ASSERT_EQ(rows.tasks.size(), 6u);
    EXPECT_EQ(rows.tasks[2].weights_s, 0.5);
    ASSERT_EQ(rows.syncs.size(), 3u);
    const SyncRow& sync = rows.syncs[1];
    EXPECT_THAT((std::array{sync.section, sync.replica, sync.stage, sync.rank, static_cast<int>(sync.step),
                            sync.kind, sync.groups}),
                testing::ElementsAre(1, 2, 3, 4, 2, 1, 5));
    EXPECT_THAT((std::array{sync.start_s, sync.end_s, sync.busy_s}), testing::ElementsAre(6, 7, 0.25));
    ASSERT_EQ(rows.assignment.size(), 3u);
    EXPECT_EQ(rows.assignment[1].sample, 14);
    EXPECT_EQ(rows.assignment[1].replica, 2);
    ASSERT_EQ(rows.experts.size(), 6u);
    const ExpertRow& layer = rows.experts[2];
    EXPECT_THAT((std::array{static_cast<int>(layer.step), layer.section, layer.layer}),
                testing::ElementsAre(2, 1, 2));
    EXPECT_THAT((std::array{layer.largest, layer.smallest, layer.entropy}),
                testing::ElementsAre(3.5, 0.5, 0.75));
    EXPECT_EQ(rows.experts[3].layer, 3);
    ASSERT_EQ(rows.losses.size(), 6u);
    const LossRow& term = rows.losses[3];
    EXPECT_EQ(term.step, 2);
    EXPECT_EQ(term.section, 2);
    EXPECT_EQ(term.value, 0.25);
    EXPECT_EQ(std::string(term.name.begin(), term.name.end()), "exactly 16 bytes");
    EXPECT_EQ(std::string(rows.losses[2].name.data()), "cross_entropy");
    EXPECT_EQ(read_sections(path_), (std::vector<std::string>{"vision", "language"}));
    const RowCounts two{.steps = 2, .tasks = 4, .syncs = 2, .assignment = 2, .experts = 4, .losses = 4};
    EXPECT_EQ(count_rows(path_),
              (RowCounts{.steps = 3, .tasks = 6, .syncs = 3, .assignment = 3, .experts = 6, .losses = 6}));
    EXPECT_EQ(read_metrics(path_, two).syncs.size(), 2u);
    EXPECT_EQ(read_metrics(path_, two).assignment.size(), 2u);
    EXPECT_EQ(read_metrics(path_, two).experts.size(), 4u);
    EXPECT_EQ(read_metrics(path_, two).losses.size(), 4u);
    cut_metrics(path_, {.deck = "other", .environment = "e", .sections = {"a"}, .windows = {5}}, two, quiet_);
    EXPECT_EQ(count_rows(path_), two);
    EXPECT_EQ(read_sections(path_), std::vector<std::string>{"a"});
    EXPECT_EQ(read_windows(path_), std::vector<int>{5});
    EXPECT_EQ(read_deck(path_), "other");
    append_metrics(path_, rows_of(9), quiet_);
    EXPECT_EQ(read_metrics(path_).steps.at(2).step, 9);
    EXPECT_EQ(read_metrics(path_).tasks.at(3).step, 2);
}

TEST_F(Metrics, OfAnOlderBuildGetTheTableOfLosses) {
    for (std::int64_t step = 1; step <= 3; ++step) append_metrics(path_, rows_of(step), quiet_);
    change_whole(path_, quiet_, [](hid_t file) { MAESTRO_HDF5(H5Ldelete(file, "losses", H5P_DEFAULT)); });
    const RowCounts two{.steps = 2, .tasks = 4, .syncs = 2, .assignment = 2, .experts = 4};
    EXPECT_EQ(read_first_step(path_), 1);
    change_whole(path_, quiet_, [](hid_t file) { MAESTRO_HDF5(H5Adelete(file, "first_step")); });
    EXPECT_EQ(read_first_step(path_), std::nullopt);
    EXPECT_EQ(count_rows(path_).steps, 3);
    EXPECT_EQ(read_metrics(path_, two).losses.size(), 0u);
    RowCounts more = two;
    more.losses = 1;
    EXPECT_EQ(testing_support::error_of([&] { cut_metrics(path_, {}, more, quiet_); }).code,
              ExitCode::bad_data);
    cut_metrics(path_, {.deck = {}, .environment = {}, .sections = {}, .first_step = 3}, two, quiet_);
    EXPECT_EQ(count_rows(path_), two);
    EXPECT_EQ(read_first_step(path_), 3);
    append_metrics(path_, rows_of(3), quiet_);
    const Rows rows = read_metrics(path_);
    ASSERT_EQ(rows.losses.size(), 2u);
    EXPECT_EQ(rows.losses[0].step, 3);
    EXPECT_EQ(rows.steps.size(), 3u);
}

TEST_F(Metrics, JudgeACheckpointByTheStepsAfterIt) {
    Rows rows;
    for (const std::int64_t step : {4, 5, 6, 7, 8})
        rows.steps.push_back({.step = step, .loss = 1.0 / static_cast<double>(step)});
    rows.steps[3].loss = std::nan("");  // step 7, which had no targets
    append_metrics(path_, rows, quiet_);
    const std::array<std::int64_t, 7> steps{8, 7, 6, 4, 3, 2, 9};
    std::vector<double> means;
    std::vector<std::int64_t> judged_by;
    for (const MeanLoss& loss : mean_losses_after(path_, steps, 2)) {
        means.push_back(loss.mean);
        judged_by.push_back(loss.steps);
    }
    EXPECT_THAT(means, testing::ElementsAre(testing::IsNan(), 1.0 / 8, 1.0 / 8, (1.0 / 5 + 1.0 / 6) / 2,
                                            (1.0 / 4 + 1.0 / 5) / 2, testing::IsNan(), testing::IsNan()));
    EXPECT_THAT(judged_by, testing::ElementsAre(0, 1, 2, 2, 2, 0, 0));
}

TEST_F(Metrics, AreAppendedWhereThereAreLoadsOfExpertsAlone) {
    append_metrics(path_, {.steps = {}, .tasks = {}, .assignment = {}, .experts = {{.step = 1}}}, quiet_);
    EXPECT_EQ(count_rows(path_).experts, 1);
}

TEST_F(Metrics, ManyRowsGoThroughManyChunks) {
    Rows rows;
    for (int i = 0; i < 30'000; ++i) rows.tasks.push_back({.rank = i, .step = i});
    append_metrics(path_, rows, quiet_);
    append_metrics(path_, rows, quiet_);
    cut_metrics(path_, {}, {.steps = 0, .tasks = 30'001, .assignment = 0}, quiet_);
    append_metrics(path_, rows, quiet_);
    const Rows found = read_metrics(path_);
    ASSERT_EQ(found.tasks.size(), 60'001u);
    for (int i = 0; i < 30'000; ++i) {
        ASSERT_EQ(found.tasks[static_cast<std::size_t>(i)].rank, i);
        ASSERT_EQ(found.tasks[static_cast<std::size_t>(30'001 + i)].rank, i);
    }
}

TEST_F(Metrics, FewerRowsThanACheckpointKnowsAreDamage) {
    append_metrics(path_, rows_of(1), quiet_);
    const std::string before = bytes();
    const RowCounts more{.steps = 2, .tasks = 2, .assignment = 1};
    const auto cut = testing_support::error_of([&] { cut_metrics(path_, {}, more, quiet_); });
    EXPECT_EQ(cut.code, ExitCode::bad_data);
    EXPECT_EQ(testing_support::error_of([&] { read_metrics(path_, more); }).code, ExitCode::bad_data);
    EXPECT_EQ(bytes(), before);
    fs::resize_file(path_, 2000);
    EXPECT_EQ(testing_support::error_of([&] { count_rows(path_); }).code, ExitCode::bad_data);
    std::ofstream(path_) << "no HDF5";
    EXPECT_EQ(testing_support::error_of([&] { read_metrics(path_); }).code, ExitCode::bad_data);
    fs::remove(path_);
    EXPECT_EQ(testing_support::error_of([&] { count_rows(path_); }).code, ExitCode::bad_data);
}

TEST_F(Metrics, AFailedChangeLeavesTheFileAsItWas) {
    append_metrics(path_, rows_of(1), quiet_);
    const std::string before = bytes();
    EXPECT_THROW(change_whole(path_, quiet_,
                              [](hid_t file) {
                                  write_attribute(file, "deck", std::string("half"));
                                  throw Error(ExitCode::bad_data, "no more");
                              }),
                 Error);
    EXPECT_EQ(bytes(), before);
    EXPECT_FALSE(fs::exists(path_.string() + ".journal"));
}

/// Tries to lock the file as HDF5 does for a reader, whenever a part of a change has been written.
class Reader final : public Pulse {
public:
    explicit Reader(fs::path path) : path_(std::move(path)) {}
    void beat() noexcept override {
        // The journal is complete, and the file itself is being changed.
        if (!fs::exists(path_.string() + ".journal")) return;
        const storage::Descriptor file(path_, O_RDONLY);
        ++(::flock(file.get(), LOCK_SH | LOCK_NB) == 0 ? let_in : kept_out);
    }
    int let_in = 0, kept_out = 0;

private:
    fs::path path_;
};

TEST_F(Metrics, NobodyReadsHalfOfAChange) {
    Reader reader(path_);
    append_metrics(path_, rows_of(1), reader);
    EXPECT_GT(reader.kept_out, 1);
    EXPECT_EQ(reader.let_in, 0);
    const storage::Descriptor after(path_, O_RDONLY);
    EXPECT_EQ(::flock(after.get(), LOCK_SH | LOCK_NB), 0);
}

TEST_F(Metrics, AReaderThatKeepsTheFileOpenDoesNotStopTheRun) {
    const storage::Descriptor open(path_, O_RDONLY);
    const storage::FileLock lock(open, storage::FileLock::Kind::shared);
    ASSERT_TRUE(lock.held());
    append_metrics(path_, rows_of(1), quiet_);
    EXPECT_EQ(read_metrics(path_).steps.size(), 1u);
}

/// Killed anywhere: after the next look every row of a finished append is there, and no half of another.
TEST_F(Metrics, AKillLeavesWholeAppends) {
    unsigned pause_us = 0;
    for (int round = 0; round < 40; ++round) {
        const std::int64_t done = count_rows(path_).steps;
        const pid_t child = fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
            for (std::int64_t step = done + 1;; ++step) append_metrics(path_, rows_of(step), quiet_);
        }
        pause_us = (pause_us * 7 + 1237) % 30'000;
        usleep(3'000 + pause_us);
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
        const RowCounts counts = count_rows(path_);
        ASSERT_GE(counts.steps, done);
        ASSERT_EQ(counts.tasks, 2 * counts.steps);
        ASSERT_EQ(counts.syncs, counts.steps);
        ASSERT_EQ(counts.assignment, counts.steps);
        ASSERT_EQ(counts.experts, 2 * counts.steps);
        ASSERT_EQ(counts.losses, 2 * counts.steps);
    }
    const Rows rows = read_metrics(path_);
    EXPECT_FALSE(rows.steps.empty());
    for (std::size_t i = 0; i < rows.steps.size(); ++i)
        ASSERT_EQ(rows.steps[i].step, static_cast<std::int64_t>(i + 1));
}

TEST_F(Metrics, AJournalIsFinishedIfWholeAndDroppedIfNot) {
    append_metrics(path_, rows_of(1), quiet_);
    const std::string before = bytes();
    std::ofstream(path_.string() + ".journal")
        << "maestroJ, and then nothing of use in it, not even a checksum";
    EXPECT_EQ(count_rows(path_).steps, 1);
    EXPECT_EQ(bytes(), before);
    EXPECT_FALSE(fs::exists(path_.string() + ".journal"));
}

/// Copies the journal of a change while it is there.
class JournalKeeper final : public Pulse {
public:
    JournalKeeper(fs::path journal, fs::path copy) : journal_(std::move(journal)), copy_(std::move(copy)) {}
    void beat() noexcept override {
        std::error_code ignored;
        fs::copy_file(journal_, copy_, fs::copy_options::overwrite_existing, ignored);
    }

private:
    fs::path journal_, copy_;
};

TEST_F(Metrics, SetAsideTheyAreWholeAndReplaceNothing) {
    const fs::path journal = path_.string() + ".journal", kept = path_.string() + ".kept";
    for (const std::int64_t round : {1, 2}) {
        create_metrics(path_, {.deck = "deck", .environment = "", .sections = {}}, {}, quiet_);
        for (std::int64_t step = 1; step < round; ++step) append_metrics(path_, rows_of(step), quiet_);
        const std::string before = bytes();
        JournalKeeper keeper(journal, kept);
        append_metrics(path_, rows_of(round), keeper);
        std::ofstream(path_, std::ios::binary) << before;  // as after a kill
        fs::copy_file(kept, journal);
        const fs::path aside = set_metrics_aside(path_, ".abandoned");
        EXPECT_EQ(aside, path_.string() + (round == 1 ? ".abandoned" : ".abandoned-2"));
        EXPECT_FALSE(fs::exists(path_));
        EXPECT_FALSE(fs::exists(journal));
    }
    EXPECT_EQ(read_metrics(path_.string() + ".abandoned").steps.size(), 1u);
    EXPECT_EQ(read_metrics(path_.string() + ".abandoned-2").steps.size(), 2u);
}

TEST_F(Metrics, HoldTheEnvironmentOfManyRanks) {
    const std::string environment(300'000, 'e');
    create_metrics(path_, {.deck = "deck", .environment = environment, .sections = {}}, {}, quiet_);
    const File file(path_, File::Mode::read, quiet_);
    EXPECT_EQ(read_text_attribute(file, "environment"), environment);
}

}  // namespace
}  // namespace maestro::io
