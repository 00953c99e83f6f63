#include "safetensors/safetensors_writer.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <string>
#include <thread>

#include "base/error.hpp"
#include "base/shard.hpp"
#include "safetensors/safetensors_folder.hpp"
#include "support/errors.hpp"
#include "support/scratch_folder.hpp"
#include "unit/safetensors/golden.hpp"

namespace maestro::safetensors {
namespace {

namespace fs = std::filesystem;

using safetensors_test::bytes_of;
using safetensors_test::kGolden;
using safetensors_test::kMaxShard;
using safetensors_test::model;
using safetensors_test::weights;
using safetensors_test::write_bytes;
using testing::HasSubstr;
using testing_support::error_of;

std::vector<std::string> names_in(const fs::path& folder) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
}

class SafetensorsWriterTest : public testing::Test {
protected:
    testing_support::ScratchFolder scratch_;
    fs::path folder_ = scratch_.path() / "new/model";
    Pulse pulse_;
};

/// What `rank` of `ranks` holds of a tensor: rows of the first tensors, columns of the others.
std::vector<Extent> part(const TensorSpec& spec, std::size_t number, int rank, int ranks) {
    if (spec.shape.size() != 2 || number < 4) {
        const Range held = part_of(spec.elements(), rank, ranks);
        return {{held.begin, held.begin, held.size()}};
    }
    std::vector<Extent> extents =
        extents_of(spec.shape, {{{0, spec.shape[0]}}, part_of(spec.shape[1], rank, ranks)});
    for (Extent& extent : extents) extent.local = extent.logical;  // ranks have the whole tensor here
    return extents;
}

/// Four ranks write what the reference wrote, byte for byte: values, headers, names and the index.
TEST_F(SafetensorsWriterTest, WritesTheFilesOfTheReference) {
    for (const auto& [golden, max_shard] :
         {std::pair("single", kMaxShardBytes), std::pair("sharded", kMaxShard)}) {
        const fs::path folder = folder_ / golden;
        const OutputLayout layout = lay_out(model(), max_shard);
        SafetensorsWriter first(folder, layout, pulse_);
        first.prepare();
        {
            std::vector<std::jthread> ranks;
            for (int rank = 0; rank < 4; ++rank)
                ranks.emplace_back([&, rank] {
                    SafetensorsWriter writer(folder, layout, pulse_);
                    for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
                        const TensorSpec& spec = layout.tensors[i];
                        writer.write(i, part(spec, i, rank, 4), weights(i, spec.elements()).data());
                    }
                    writer.sync();
                    writer.verify();
                });
        }
        EXPECT_THAT(error_of([&] { SafetensorsFolder(folder, pulse_); }).what,
                    HasSubstr("no model.safetensors"))
            << "not whole yet";
        first.sync();
        first.verify();
        first.publish();
        EXPECT_EQ(names_in(folder), names_in(kGolden / golden));
        for (const std::string& name : names_in(folder))
            EXPECT_EQ(bytes_of(folder / name), bytes_of(kGolden / golden / name)) << name;
    }
}

/// More than one block; a value of each type survives a second export unchanged.
TEST_F(SafetensorsWriterTest, RoundTripsLargeTensors) {
    constexpr std::int64_t kRows = 600, kColumns = 1001;
    for (const StoredType type : {StoredType::bf16, StoredType::f16, StoredType::f32}) {
        std::vector<float> values = weights(3, kRows * kColumns);
        std::vector<std::string> files;
        for (const char* name : {"first", "second"}) {
            const fs::path folder = folder_ / name_of(type) / name;
            const OutputLayout layout =
                lay_out({{"a", StoredType::bf16, {3}}, {"w", type, {kRows, kColumns}}});
            SafetensorsWriter writer(folder, layout, pulse_);
            writer.prepare();
            const Extent all = {0, 0, kRows * kColumns}, three = {0, 0, 3};
            writer.write(0, std::span(&three, 1), values.data());
            writer.write(1, std::span(&all, 1), values.data());
            writer.sync();
            writer.verify();
            writer.publish();
            SafetensorsFolder written(folder, pulse_);
            const auto found = written.find("w");
            found.file->read(*found.tensor, Range{0, kRows * kColumns}, values.data(), pulse_);
            files.push_back(bytes_of(folder / "model.safetensors"));
        }
        EXPECT_TRUE(files[0] == files[1]) << name_of(type);
    }
}

TEST_F(SafetensorsWriterTest, RefusesAFolderWithWeights) {
    const OutputLayout layout = lay_out({{"w", StoredType::f32, {1}}});
    fs::create_directories(folder_);
    write_bytes(folder_ / "config.json", "{}");
    write_bytes(folder_ / "model-00001-of-00007.safetensors.partial", "from an export that did not end");
    write_bytes(folder_ / "model.safetensors.partial", std::string(1000, 'x'));
    {
        SafetensorsWriter writer(folder_, layout, pulse_);
        writer.prepare();
        EXPECT_EQ(names_in(folder_), (std::vector<std::string>{"config.json", "model.safetensors.partial"}));
        EXPECT_EQ(fs::file_size(folder_ / "model.safetensors.partial"), layout.files[0].bytes);
    }
    EXPECT_EQ(names_in(folder_), std::vector<std::string>{"config.json"}) << "given up before publish()";
    for (const char* name :
         {"model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json"}) {
        write_bytes(folder_ / name, "");
        const auto error = error_of([&] { SafetensorsWriter(folder_, layout, pulse_).prepare(); });
        EXPECT_EQ(error.code, ExitCode::cannot_create);
        EXPECT_THAT(error.what,
                    HasSubstr(std::string(name) + ": the folder holds weights already; name another"));
        fs::remove(folder_ / name);
    }
    EXPECT_EQ(error_of([&] { SafetensorsWriter(folder_ / "config.json/x", layout, pulse_).prepare(); }).code,
              ExitCode::cannot_create);
}

TEST_F(SafetensorsWriterTest, RefusesWeightsThatTheFilesCannotHold) {
    const OutputLayout layout = lay_out({{"w", StoredType::f16, {2, 2}}, {"v", StoredType::bf16, {2}}});
    SafetensorsWriter writer(folder_, layout, pulse_);
    writer.prepare();
    const float values[] = {1, 2, 65520, std::numeric_limits<float>::quiet_NaN()};
    const Extent three = {0, 0, 3}, two = {0, 2, 2}, beyond = {1, 0, 2};
    const auto error = error_of([&] { writer.write(0, std::span(&three, 1), values); });
    EXPECT_EQ(error.code, ExitCode::bad_data);
    EXPECT_THAT(error.what,
                HasSubstr("tensor \"w\": element 2 of [2, 2] is 65520, and no finite number in F16"));
    EXPECT_THAT(error_of([&] { writer.write(1, std::span(&two, 1), values); }).what,
                HasSubstr("element 1 of [2] is nan"));
    EXPECT_EQ(error_of([&] { writer.write(1, std::span(&beyond, 1), values); }).code,
              ExitCode::broken_invariant);
}

TEST_F(SafetensorsWriterTest, NoticesWhatTheDiskChanged) {
    const OutputLayout layout = lay_out({{"w", StoredType::bf16, {1000, 1000}}, {"v", StoredType::f32, {1}}});
    const std::vector<float> values = weights(0, 1000000);
    const Extent all = {0, 0, 1000000};
    const fs::path path = folder_ / "model.safetensors.partial";
    const std::size_t header = layout.files[0].header.size(), v = header, w = header + 4;
    for (const auto& [changed, what] :
         {std::pair(w + 1500000, "tensor \"w\": what was read back from byte "),
          {v + 3, "tensor \"v\": what"},
          {header - 1, "its header: what"},
          {layout.files[0].bytes, "tensor \"w\": what"}}) {  // that many bytes remain
        {
            SafetensorsWriter writer(folder_, layout, pulse_);
            writer.prepare();
            writer.write(0, std::span(&all, 1), values.data());
            const Extent one = {0, 0, 1};
            writer.write(1, std::span(&one, 1), values.data());
            writer.sync();
            EXPECT_EQ(error_of([&] { writer.publish(); }).code, ExitCode::broken_invariant) << "not verified";
            std::string bytes = bytes_of(path);
            if (changed < bytes.size())
                bytes[changed] = static_cast<char>(bytes[changed] ^ 1);
            else
                bytes.pop_back();
            write_bytes(path, bytes);
            const auto error = error_of([&] { writer.verify(); });
            EXPECT_EQ(error.code, ExitCode::io_error);
            EXPECT_THAT(error.what, HasSubstr(path.string() + ": " + what));
        }
        EXPECT_FALSE(fs::exists(folder_)) << "nothing half written";
    }
}

TEST_F(SafetensorsWriterTest, GivesUpWhenCancelled) {
    struct Cancelled final : Pulse {
        bool cancelled() const noexcept override { return true; }
    } cancelled;
    const OutputLayout layout = lay_out({{"w", StoredType::f32, {1}}});
    SafetensorsWriter first(folder_, layout, pulse_);
    first.prepare();
    const Extent one = {0, 0, 1};
    const float value = 1;
    const auto error =
        error_of([&] { SafetensorsWriter(folder_, layout, cancelled).write(0, std::span(&one, 1), &value); });
    EXPECT_EQ(error.code, ExitCode::io_error);
    EXPECT_THAT(error.what, HasSubstr("another rank failed"));
}

TEST(OutputLayout, DescribesAModelOfManyGigabytes) {
    std::vector<TensorSpec> tensors;
    for (int i = 0; i < 50; ++i)
        tensors.push_back({"w" + std::to_string(i), StoredType::bf16, {8192, 32768}});
    const OutputLayout layout = lay_out(tensors);
    ASSERT_EQ(layout.files.size(), 6u) << "9 matrices of 512 MiB each in 5 GB";
    EXPECT_EQ(layout.files[0].name, "model-00001-of-00006.safetensors");
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const OutputLayout::File& file = layout.files[layout.places[i].file];
        EXPECT_EQ(layout.places[i].file, i / 9);
        EXPECT_EQ(layout.places[i].offset % 8, 0u);
        EXPECT_LE(file.bytes - file.header.size(), kMaxShardBytes);
        const std::uint64_t end = layout.places[i].offset + (std::uint64_t{512} << 20);
        EXPECT_TRUE(end <= file.bytes);
    }
    EXPECT_THAT(layout.index, HasSubstr("\"total_size\": 26843545600"));
    EXPECT_EQ(lay_out({}).files[0].bytes, lay_out({}).files[0].header.size());
    EXPECT_EQ(error_of([] {
                  lay_out({{"w", StoredType::f32, {}}, {"w", StoredType::f32, {}}});
              }).code,
              ExitCode::broken_invariant);
}

}  // namespace
}  // namespace maestro::safetensors
