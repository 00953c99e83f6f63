#include "io/checkpoint.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <numeric>

#include "base/adhash.hpp"
#include "base/error.hpp"
#include "io/checkpoint_reader.hpp"
#include "io/exit_report.hpp"
#include "io/file_writer.hpp"
#include "io/hdf5.hpp"
#include "io/hdf5_update.hpp"
#include "io/run_directory.hpp"
#include "io/section_image.hpp"
#include "support/scratch_folder.hpp"

namespace maestro::io {
namespace {

namespace fs = std::filesystem;

class Run : public testing::Test {
protected:
    void SetUp() override { prepare_run_directory(run_); }

    fs::path save(std::int64_t step, std::int64_t keep = 2, std::vector<fs::path> damaged = {}) {
        return save(step, Retention{.newest = keep, .damaged = std::move(damaged)});
    }
    fs::path save(std::int64_t step, const Retention& retention) {
        const float base = static_cast<float>(step);
        const std::vector<float> weight{base, 2, 3, 4, 5, 6}, first{1, 1, 1, 1, 1, base}, second(6, 0.5f),
            frozen{7, 8};
        const std::vector<Values> parameters{
            {{"layers.0.weight", {2, 3}, true}, {weight.data(), first.data(), second.data()}},
            {{"teacher_head.weight", {2}}, {frozen.data()}}};
        const fs::path partial = begin(step);
        std::vector<ManifestEntry> entries{write(partial, step, parameters)};
        entries.push_back(write(
            partial, describe_train_state(
                         {.step = step,
                          .deck = "deck",
                          .ends = std::vector<std::int32_t>{151645, 2},
                          .settings = {{"optimizer.clip", "1"}, {"run.name", "a \"name\"\nof two lines"}},
                          .defaults = {{"optimizer.clip", "2"}},
                          .samples = 0xfedcba9876543210,
                          .counts = {.steps = step,
                                     .tasks = 2 * step,
                                     .syncs = 4 * step,
                                     .assignment = 3 * step,
                                     .experts = 5 * step,
                                     .losses = 6 * step}},
                         quiet_)));
        return finish_checkpoint(partial, entries, retention, quiet_);
    }
    fs::path begin(std::int64_t step) {
        begin_checkpoint(run_, step);
        return partial_of(run_, step);
    }
    /// A file without arrays.
    ManifestEntry write(const fs::path& partial, const FileImage& image) {
        FileWriter writer(partial, image.file, quiet_);
        writer.write(image);
        writer.sync();
        writer.read_back(image);
        writer.verify();
        return {image.file, image.bytes, writer.hash()};
    }
    struct Values {
        StoredParameter parameter;
        std::array<const float*, 3> arrays{};
    };
    /// The file of section "language", by one writer.
    ManifestEntry write(const fs::path& partial, std::int64_t step, const std::vector<Values>& all) {
        std::vector<StoredParameter> parameters;
        for (const Values& v : all) parameters.push_back(v.parameter);
        const SectionImage made = describe_section("language", step, parameters, quiet_);
        FileWriter writer(partial, made.image.file, quiet_);
        writer.write(made.image);
        const auto each_array = [&](const auto& action) {
            for (std::size_t p = 0; p < all.size(); ++p)
                for (std::size_t i = 0; i < 3; ++i) {
                    const Shard shard = whole(parameters[p].shape);
                    EXPECT_EQ(made.places[p][i] > 0, all[p].arrays[i] != nullptr);
                    if (all[p].arrays[i])
                        action(made.places[p][i], parameters[p].shape, shard, Range{0, shard.size()},
                               all[p].arrays[i]);
                }
        };
        each_array([&](auto place, const auto& shape, const Shard& shard, Range held, const float* values) {
            writer.write(place, shape, shard, held, values);
        });
        writer.sync();
        writer.read_back(made.image);
        each_array([&](auto place, const auto& shape, const Shard& shard, Range held, const float*) {
            writer.read_back(place, shape, shard, held);
        });
        writer.verify();
        return {made.image.file, made.image.bytes, writer.hash()};
    }
    /// What is wrong with any file of it.
    std::string damage(const fs::path& checkpoint, int ranks = 1) {
        const Manifest manifest = read_manifest(checkpoint);
        std::vector<std::uint64_t> hashes(manifest.files.size(), 0);
        for (int rank = 0; rank < ranks; ++rank)
            if (const std::string what = damage_of_part(checkpoint, manifest, rank, ranks, hashes, quiet_);
                !what.empty())
                return what;
        return damage_of(checkpoint, manifest, hashes);
    }
    std::vector<std::string> names() const {
        std::vector<std::string> found;
        for (const auto& entry : fs::directory_iterator(run_ / "checkpoints"))
            found.push_back(entry.path().filename().string());
        std::sort(found.begin(), found.end());
        return found;
    }
    static std::string text_of(const fs::path& path) {
        std::ifstream file(path, std::ios::binary);
        return {std::istreambuf_iterator<char>(file), {}};
    }
    static ExitCode code_of(const std::function<void()>& action) {
        try {
            action();
        } catch (const Error& error) {
            return error.code();
        }
        return ExitCode::done;
    }

    Pulse quiet_;
    testing_support::ScratchFolder scratch_;
    const fs::path run_ = scratch_.path() / "run";
};

TEST_F(Run, ComesBackAsItWasSaved) {
    const fs::path checkpoint = save(12);
    EXPECT_EQ(checkpoint.filename(), "step-000012");
    EXPECT_EQ(list_checkpoints(run_), std::vector{checkpoint});
    EXPECT_EQ(damage(checkpoint), "");
    const SectionReader section(checkpoint, "language", quiet_);
    EXPECT_THAT(section.read("layers.0.weight", {2, 3}, Stored::weight, whole({2, 3})),
                testing::ElementsAre(12, 2, 3, 4, 5, 6));
    EXPECT_THAT(section.read("layers.0.weight", {2, 3}, Stored::first, whole({2, 3})),
                testing::ElementsAre(1, 1, 1, 1, 1, 12));
    EXPECT_TRUE(section.has("teacher_head.weight"));
    EXPECT_FALSE(section.has("nothing"));
    EXPECT_THAT(sections_of(checkpoint), testing::ElementsAre("language"));
    const TrainState state = read_train_state(checkpoint, quiet_);
    EXPECT_EQ(state.step, 12);
    EXPECT_EQ(state.deck, "deck");
    EXPECT_EQ(state.ends, (std::vector<std::int32_t>{151645, 2}));
    EXPECT_EQ(state.settings.size(), 2u);
    EXPECT_EQ(state.settings.at("run.name"), "a \"name\"\nof two lines");
    EXPECT_EQ(state.defaults.at("optimizer.clip"), "2");
    EXPECT_EQ(state.samples, 0xfedcba9876543210u);
    EXPECT_EQ(
        state.counts,
        (RowCounts{.steps = 12, .tasks = 24, .syncs = 48, .assignment = 36, .experts = 60, .losses = 72}));
}

TEST_F(Run, GivesEveryShardAndEveryPartOfIt) {
    constexpr std::int64_t kRows = 7, kColumns = 5;
    std::vector<float> matrix(kRows * kColumns), vector(kRows);
    std::iota(matrix.begin(), matrix.end(), 0.0f);
    std::iota(vector.begin(), vector.end(), 100.0f);
    const std::vector<std::int64_t> shape{kRows, kColumns}, flat{kRows};
    write(begin(1), 1, {{{"matrix", shape}, {matrix.data()}}, {{"vector", flat}, {vector.data()}}});
    const SectionReader section(run_ / "checkpoints/step-000001.partial", "language", quiet_);
    const auto check = [&](const char* name, const std::vector<std::int64_t>& of,
                           const std::vector<float>& all, const Shard& shard) {
        std::vector<float> held;
        for (const Extent& extent : extents_of(of, shard))
            held.insert(held.end(), all.begin() + extent.logical,
                        all.begin() + extent.logical + extent.count);
        EXPECT_EQ(section.read(name, of, Stored::weight, shard), held);
        for (std::int64_t from = 0; from <= shard.size(); ++from)
            for (std::int64_t to = from; to <= shard.size(); ++to)
                EXPECT_EQ(section.read(name, of, Stored::weight, shard, {from, to}),
                          std::vector(held.begin() + from, held.begin() + to));
    };
    for (const std::vector<Range>& rows :
         {std::vector<Range>{{0, 7}}, {{2, 5}}, {{0, 1}, {3, 4}, {6, 7}}, {{1, 3}, {3, 5}}}) {
        for (const Range columns : {Range{0, kColumns}, Range{0, 2}, Range{1, 4}, Range{4, 5}})
            check("matrix", shape, matrix, {rows, columns});
        check("vector", flat, vector, {rows, {0, 1}});
    }
}

TEST_F(Run, ManyWritersMakeTheFileOfOne) {
    const std::vector<std::int64_t> shape{6, 5};
    std::vector<float> all(30), moment(30, 0.5f);
    std::iota(all.begin(), all.end(), 0.0f);
    const ManifestEntry due =
        write(begin(1), 7, {{{"matrix", shape, true}, {all.data(), moment.data(), all.data()}}});
    const std::string bytes = text_of(partial_of(run_, 1) / "language.h5");
    const fs::path many = begin(2);
    const std::vector<StoredParameter> stored{{"matrix", shape, true}};
    const SectionImage made = describe_section("language", 7, stored, quiet_);
    std::int64_t elements = 0;
    std::uint64_t hash = 0;
    // The one who makes the file comes last: nobody waits for it.
    for (const Shard& shard :
         {Shard{{{0, 2}, {4, 6}}, {0, 3}}, Shard{{{0, 6}}, {3, 5}}, Shard{{{2, 4}}, {0, 3}}})
        for (std::int64_t at = 0; at < shard.size(); at += 5) {  // as shares that end anywhere
            const Range held{at, std::min(at + 5, shard.size())};
            std::vector<float> values;
            for (const Extent& e : extents_of(shape, shard, held))
                values.insert(values.end(), all.begin() + e.logical, all.begin() + e.logical + e.count);
            FileWriter writer(many, "language.h5", quiet_);
            writer.write(made.places[0][0], shape, shard, held, values.data());
            writer.write(made.places[0][1], shape, shard, held, moment.data());
            writer.write(made.places[0][2], shape, shard, held, values.data());
            writer.sync();
            elements += writer.elements();
            hash += writer.hash();
        }
    hash += write(many, made.image).hash;
    EXPECT_EQ(elements, 90);
    EXPECT_EQ(hash, due.hash);
    EXPECT_EQ(text_of(many / "language.h5"), bytes);
}

TEST_F(Run, ArraysBeginAtWholeWordsWhateverTheirNames) {
    // Names of any length, enough of them for every kind of metadata, and arrays from one element up.
    for (std::size_t count : {1, 9, 150}) {
        std::vector<StoredParameter> parameters;
        for (std::size_t i = 0; i < count; ++i)
            parameters.push_back({std::string(1 + 37 * i % 211, 'a') + std::to_string(i),
                                  {static_cast<std::int64_t>(1 + 13 * i % 1021)},
                                  i % 3 > 0});
        const SectionImage made = describe_section("language", 1, parameters, quiet_);
        std::uint64_t covered = 0;
        for (const FileImage::Block& block : made.image.blocks) covered += block.bytes.size();
        for (const StoredParameter& p : parameters)
            covered += 4 * static_cast<std::uint64_t>(p.shape[0]) * (p.moments ? 3 : 1);
        EXPECT_EQ(covered, made.image.bytes);
        for (std::size_t p = 0; p < count; ++p)
            for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(made.places[p][i] % 4, 0u);
    }
}

TEST_F(Run, WhatTheDiskHasChangedIsNoticed) {
    const std::vector<std::int64_t> shape{4};
    const std::vector<float> values{1, 2, 3, 4};
    const std::vector<StoredParameter> stored{{"vector", shape}};
    const SectionImage made = describe_section("language", 1, stored, quiet_);
    const fs::path partial = begin(1);
    FileWriter writer(partial, made.image.file, quiet_);
    writer.write(made.image);
    writer.write(made.places[0][0], shape, whole(shape), {0, 4}, values.data());
    writer.sync();
    {
        std::fstream file(partial / made.image.file, std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(static_cast<std::streamoff>(made.places[0][0] + 8));
        file.put('!');
    }
    writer.read_back(made.image);
    writer.read_back(made.places[0][0], shape, whole(shape), {0, 4});
    EXPECT_EQ(code_of([&] { writer.verify(); }), ExitCode::io_error);
}

TEST_F(Run, AFileThatDoesNotFitIsRefused) {
    const FileImage huge{.file = "huge.h5", .bytes = std::uint64_t{1} << 60, .blocks = {}};
    FileWriter writer(begin(1), huge.file, quiet_);
    EXPECT_EQ(code_of([&] { writer.write(huge); }), ExitCode::io_error);
}

TEST_F(Run, CancelledWorkEnds) {
    class Cancelled final : public Pulse {
        bool cancelled() const noexcept override { return true; }
    } cancelled;
    const FileImage image = describe_train_state({}, quiet_);
    FileWriter writer(begin(1), image.file, cancelled);
    EXPECT_EQ(code_of([&] { writer.write(image); }), ExitCode::io_error);
}

TEST_F(Run, AFileOfAnotherSizeIsNotPublished) {
    const fs::path partial = begin(1);
    ManifestEntry entry = write(partial, describe_train_state({}, quiet_));
    ++entry.bytes;
    EXPECT_EQ(code_of([&] { finish_checkpoint(partial, std::span(&entry, 1), {}, quiet_); }),
              ExitCode::io_error);
    EXPECT_TRUE(list_checkpoints(run_).empty());
}

TEST_F(Run, RanksReadEachByteOnce) {
    const fs::path checkpoint = save(3);
    // Files of several blocks, of which ranks get parts.
    Manifest manifest = read_manifest(checkpoint);
    for (const std::uint64_t bytes :
         {std::uint64_t{0}, std::uint64_t{35} << 20, (std::uint64_t{16} << 20) + 3}) {
        const std::string name = "file-" + std::to_string(bytes);
        std::string content(bytes, '\0');
        for (std::size_t i = 0; i < content.size(); i += 4097) content[i] = static_cast<char>(i / 4097);
        std::ofstream(checkpoint / name, std::ios::binary) << content;
        AdHash hash;
        hash.add(content.data(), bytes, 0);
        manifest.files.push_back({name, bytes, hash.value()});
    }
    for (const int ranks : {1, 2, 3, 7, 20}) {
        std::vector<std::uint64_t> hashes(manifest.files.size(), 0);
        class Counter final : public Pulse {
        public:
            void beat() noexcept override { ++beats; }
            int beats = 0;
        } counter;
        for (int rank = 0; rank < ranks; ++rank)
            EXPECT_EQ(damage_of_part(checkpoint, manifest, rank, ranks, hashes, counter), "");
        EXPECT_EQ(damage_of(checkpoint, manifest, hashes), "") << ranks << " ranks";
        EXPECT_EQ(counter.beats, 1 + 1 + 35 + 17) << "one for each MiB";
    }
    // A change in any part is noticed.
    {
        std::fstream file(checkpoint / manifest.files[3].file,
                          std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(20 << 20);
        file.put('!');
    }
    std::vector<std::uint64_t> hashes(manifest.files.size(), 0);
    for (int rank = 0; rank < 3; ++rank) damage_of_part(checkpoint, manifest, rank, 3, hashes, quiet_);
    EXPECT_THAT(damage_of(checkpoint, manifest, hashes), testing::HasSubstr(manifest.files[3].file));
}

TEST_F(Run, RefusesOtherShapesAndMissingParameters) {
    const fs::path checkpoint = save(1);
    const SectionReader section(checkpoint, "language", quiet_);
    EXPECT_EQ(code_of([&] {
                  section.read("layers.0.weight", {3, 2}, Stored::weight, whole({3, 2}));
              }),
              ExitCode::bad_data);
    EXPECT_EQ(code_of([&] {
                  section.read("layers.1.weight", {2, 3}, Stored::weight, whole({2, 3}));
              }),
              ExitCode::bad_data);
    EXPECT_EQ(code_of([&] { SectionReader(checkpoint, "vision", quiet_); }), ExitCode::bad_data);
}

TEST_F(Run, TellsWhichFileIsDamagedAndHow) {
    const fs::path checkpoint = save(3);
    const fs::path file = checkpoint / "language.h5";
    const auto size = fs::file_size(file);
    {
        std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
        stream.seekp(static_cast<std::streamoff>(size / 2));
        stream.put('!');
    }
    EXPECT_THAT(damage(checkpoint),
                testing::AllOf(testing::HasSubstr(file.string()), testing::HasSubstr("checksum")));
    fs::resize_file(file, size - 1);
    EXPECT_THAT(damage(checkpoint), testing::HasSubstr(std::to_string(size - 1)));
    fs::remove(file);
    EXPECT_THAT(damage(checkpoint), testing::HasSubstr("missing"));
    std::ofstream(checkpoint / "manifest.json") << "{\"format\": ";
    EXPECT_EQ(code_of([&] { read_manifest(checkpoint); }), ExitCode::bad_data);
    fs::remove(checkpoint / "manifest.json");
    EXPECT_EQ(code_of([&] { read_manifest(checkpoint); }), ExitCode::bad_data);
}

TEST_F(Run, WhatCannotBeReadIsNotDamaged) {
    const fs::path checkpoint = save(3);
    fs::remove(checkpoint / "language.h5");
    fs::create_directory(checkpoint / "language.h5");  // opens, and fails to be read
    EXPECT_EQ(code_of([&] { damage(checkpoint); }), ExitCode::io_error);
    EXPECT_EQ(code_of([&] { SectionReader(checkpoint, "language", quiet_); }), ExitCode::io_error);
    fs::remove(checkpoint / "language.h5");
    fs::create_symlink("language.h5", checkpoint / "language.h5");  // ELOOP
    EXPECT_EQ(code_of([&] { damage(checkpoint); }), ExitCode::io_error);
    fs::remove_all(run_ / "checkpoints");
    EXPECT_TRUE(list_checkpoints(run_).empty());
    fs::create_symlink("checkpoints", run_ / "checkpoints");
    EXPECT_EQ(code_of([&] { list_checkpoints(run_); }), ExitCode::io_error);
}

TEST_F(Run, DoesNotPassOverAnotherVersion) {
    const fs::path checkpoint = save(3), path = checkpoint / "manifest.json";
    // Whatever else another version has in its manifest.
    std::ofstream(path) << R"({"format": "maestro-checkpoint", "version": 3, "files": [{"xxh64": "0"}]})";
    EXPECT_EQ(code_of([&] { check_version(checkpoint, read_manifest(checkpoint)); }), ExitCode::bad_data);
}

TEST_F(Run, KeepsTwoAtLeast) {
    for (std::int64_t step = 1; step <= 5; ++step) save(step, 1);
    EXPECT_THAT(names(), testing::ElementsAre("LATEST", "step-000004", "step-000005"));
    for (std::int64_t step = 6; step <= 7; ++step) save(step, {.newest = 2, .besides = {4, -1}});
    EXPECT_THAT(names(), testing::ElementsAre("LATEST", "step-000004", "step-000006", "step-000007"));
}

TEST_F(Run, NewerOnesOfAnotherCourseCountForNothing) {
    for (std::int64_t step : {7, 8, 9}) save(step, 9);
    save(3);
    save(4);
    save(5);
    EXPECT_THAT(names(), testing::ElementsAre("LATEST", "step-000004", "step-000005", "step-000007",
                                              "step-000008", "step-000009"));
    std::ifstream latest(run_ / "checkpoints/LATEST");
    std::string name;
    EXPECT_EQ((latest >> name, name), "step-000005");
}

TEST_F(Run, DamagedOnesGoAsideWhenTheRunHasPassedThem) {
    for (std::int64_t step : {2, 4, 6}) save(step, 9);
    const std::vector<fs::path> damaged{run_ / "checkpoints/step-000006", run_ / "checkpoints/step-000004"};
    save(3, 2, damaged);
    EXPECT_THAT(names(), testing::IsSupersetOf({"step-000004", "step-000006"}));
    save(5, 2, damaged);
    EXPECT_THAT(names(), testing::ElementsAre("LATEST", "step-000003", "step-000004.damaged", "step-000005",
                                              "step-000006"));
    save(6, 2, damaged);
    EXPECT_THAT(names(), testing::ElementsAre("LATEST", "step-000004.damaged", "step-000005", "step-000006",
                                              "step-000006.damaged"));
    EXPECT_EQ(damage(run_ / "checkpoints/step-000006"), "");
}

TEST_F(Run, WhatWasSetAsideIsNeverReplaced) {
    const auto note = [&](const std::string& name) { return text_of(run_ / "checkpoints" / name / "note"); };
    for (const char* course : {"first", "second", "third"}) {
        for (const std::int64_t step : {2, 3}) save(step, 9);
        std::ofstream(run_ / "checkpoints/step-000003/note") << course;
        if (course == std::string("third"))
            save(3);  // another one of the same step, without a resume in between
        else
            set_aside_newer(run_, 2);
    }
    EXPECT_EQ(note("step-000003.abandoned"), "first");
    EXPECT_EQ(note("step-000003.abandoned-2"), "second");
    EXPECT_EQ(note("step-000003.abandoned-3"), "third");
    EXPECT_THAT(list_checkpoints(run_), testing::SizeIs(2));
    EXPECT_TRUE(had_checkpoints(run_));
}

TEST_F(Run, OnlyUnfinishedCheckpointsAreNone) {
    EXPECT_FALSE(had_checkpoints(run_));
    begin(4);
    EXPECT_FALSE(had_checkpoints(run_));
    EXPECT_TRUE(list_checkpoints(run_).empty());
    fs::rename(save(5), run_ / "checkpoints/step-000005.damaged");
    EXPECT_TRUE(had_checkpoints(run_));
}

TEST_F(Run, ADirectoryThatCannotBeWrittenIsRefused) {
    EXPECT_FALSE(holds_run(run_));
    save(1);
    EXPECT_TRUE(holds_run(run_));
    std::ofstream(run_ / "file") << "x";
    EXPECT_EQ(code_of([&] { prepare_run_directory(run_ / "file/run"); }), ExitCode::cannot_create);
    // A dry run tries the same and leaves nothing, whatever is missing or there.
    for (const fs::path& refused : {run_ / "file/run", fs::path("/proc/run"), run_ / std::string(300, 'x')})
        EXPECT_EQ(code_of([&] { check_run_directory(refused); }), ExitCode::cannot_create) << refused;
    const auto contents = [&] {
        return std::distance(fs::directory_iterator(run_), fs::directory_iterator());
    };
    const auto before = contents();
    check_run_directory(run_);
    check_run_directory(run_ / "a/b/c");
    EXPECT_EQ(contents(), before);
    EXPECT_EQ(code_of([&] { check_free_space(run_, std::uint64_t{1} << 60); }), ExitCode::io_error);
}

TEST_F(Run, TellsHowItEndedByTheFirstThatFailed) {
    const auto report = [&] {
        std::ifstream file(run_ / "exit.json");
        return std::string{std::istreambuf_iterator<char>(file), {}};
    };
    EXPECT_TRUE(write_exit_report(run_, {.code = 0, .reason = "done", .rank = 0, .host = "a", .step = 4}));
    EXPECT_TRUE(write_exit_report(
        run_, {.code = 76, .reason = "rank 2 \"hangs\"", .rank = 1, .host = "a", .step = 5}));
    EXPECT_TRUE(
        write_exit_report(run_, {.code = 70, .reason = "lost rank 1", .rank = 0, .host = "a", .step = 5}));
    EXPECT_THAT(report(), testing::HasSubstr("\"code\": 76"));
    EXPECT_THAT(report(), testing::HasSubstr("rank 2 \\\"hangs\\\""));
    EXPECT_FALSE(fs::exists(run_ / "exit.json.0.partial"));
    EXPECT_FALSE(write_exit_report(run_ / "nowhere", {}));
}

}  // namespace
}  // namespace maestro::io
