#include "safetensors/safetensors_file.hpp"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <fstream>
#include <limits>
#include <numeric>
#include <sstream>
#include <string>

#include "base/error.hpp"
#include "base/shard.hpp"
#include "support/errors.hpp"
#include "support/faulty_storage.hpp"
#include "support/scratch_folder.hpp"
#include "unit/safetensors/golden.hpp"

namespace maestro::safetensors {
namespace {

using safetensors_test::data_of;
using safetensors_test::file_with;
using safetensors_test::kGolden;
using safetensors_test::length_of;
using safetensors_test::unescape;
using safetensors_test::write_bytes;
using testing::HasSubstr;
using testing_support::error_of;
using testing_support::faulty_storage;

class SafetensorsFileTest : public testing::Test {
protected:
    ~SafetensorsFileTest() override { faulty_storage.reset(); }

    SafetensorsFile file_of(std::string_view bytes) {
        write_bytes(path_, bytes);
        return SafetensorsFile(path_, pulse_);
    }
    testing_support::Thrown refusal(std::string_view bytes) {
        return error_of([&] { file_of(bytes); });
    }
    /// One tensor "w" of this type and shape.
    template <class T>
    SafetensorsFile tensor(const std::string& type, const std::string& shape,
                           const std::vector<T>& elements) {
        const std::string data = data_of(elements);
        return file_of(file_with(R"({"w":{"dtype":")" + type + R"(","shape":)" + shape +
                                     R"(,"data_offsets":[0,)" + std::to_string(data.size()) + "]}}",
                                 data));
    }
    std::vector<float> read(const SafetensorsFile& file, const std::string& name) {
        const TensorInfo& found = *file.find(name);
        std::vector<float> values(static_cast<std::size_t>(found.elements), -1.0f);
        file.read(found, Range{0, found.elements}, values.data(), pulse_);
        return values;
    }

    testing_support::ScratchFolder folder_;
    std::filesystem::path path_ = folder_.path() / "model.safetensors";
    Pulse pulse_;
};

TEST_F(SafetensorsFileTest, ReadsWhatTheReferenceWrote) {
    std::ifstream stream(kGolden / "values.txt");
    std::string line;
    int weights = 0, others = 0;
    while (std::getline(stream, line)) {
        SCOPED_TRACE(line);
        std::istringstream words(line);
        std::string file_name, name, type, shape, word;
        words >> file_name >> name >> type >> shape;
        const SafetensorsFile file(kGolden / (file_name + ".safetensors"), pulse_);
        const TensorInfo* const found = file.find(unescape(name));
        ASSERT_NE(found, nullptr);
        EXPECT_EQ(name_of(found->type), type);
        std::string sizes;
        for (const std::int64_t size : found->shape)
            sizes.append(sizes.empty() ? "" : ",").append(std::to_string(size));
        EXPECT_EQ(sizes.empty() ? "-" : sizes, shape);
        if (is_readable(found->type)) {
            ++weights;
            for (const float value : read(file, found->name)) {
                ASSERT_TRUE(words >> word);
                EXPECT_EQ(std::bit_cast<std::uint32_t>(value), std::stoul(word, nullptr, 16));
            }
            EXPECT_FALSE(words >> word);
        } else {
            ++others;
            const auto error = error_of([&] { read(file, found->name); });
            EXPECT_EQ(error.code, ExitCode::bad_data);
            EXPECT_THAT(error.what,
                        HasSubstr("its dtype is " + type + ", and weights are BF16, F16, F32 or F64"));
        }
    }
    EXPECT_EQ(weights, 14);
    EXPECT_EQ(others, 8);
}

/// Parts of all kinds of a matrix that is larger than what is read at once.
TEST_F(SafetensorsFileTest, ReadsPartsAsWhole) {
    constexpr std::int64_t kRows = 700, kColumns = 1100;
    std::vector<float> all(kRows * kColumns);
    std::iota(all.begin(), all.end(), 1.0f);
    std::vector<double> doubles(all.begin(), all.end());
    std::vector<std::uint16_t> halves(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) halves[i] = static_cast<std::uint16_t>(i % 0x7f80);
    const std::vector<std::int64_t> shape = {kRows, kColumns};
    const std::vector<Shard> shards = {
        whole(shape),
        {{{3, 690}}, {0, kColumns}},
        {{{0, kRows}}, {550, kColumns}},  // half of the columns
        {{{0, kRows}}, {7, 8}},           // one column
        {{{2, 3}, {5, 300}, {699, 700}}, {1, 1099}},
        {{{2, 2}, {5, 300}}, {400, 400}},  // nothing
    };
    const auto check = [&](const SafetensorsFile& file, const auto& expected) {
        for (const Shard& shard : shards)
            for (const Range held : {Range{0, shard.size()}, part_of(shard.size(), 1, 3)}) {
                const auto extents = extents_of(shape, shard, held);
                std::vector<float> values(static_cast<std::size_t>(shard.size()), -1.0f);
                file.read(*file.find("w"), extents, values.data(), pulse_);
                std::int64_t read = 0;
                for (const Extent& extent : extents)
                    for (std::int64_t i = 0; i < extent.count; ++i, ++read)
                        ASSERT_EQ(values[extent.local + i], expected(extent.logical + i))
                            << extent.logical + i;
                EXPECT_EQ(read, held.size());
                EXPECT_EQ(std::count(values.begin(), values.end(), -1.0f), shard.size() - read);
            }
    };
    check(tensor("F32", "[700,1100]", all), [&](std::int64_t i) { return all[i]; });
    check(tensor("F64", "[700,1100]", doubles), [&](std::int64_t i) { return all[i]; });
    check(tensor("BF16", "[700,1100]", halves),
          [&](std::int64_t i) { return std::bit_cast<float>(static_cast<std::uint32_t>(halves[i]) << 16); });
}

/// As for the weights of experts that are stored transposed.
TEST_F(SafetensorsFileTest, ReadsExtentsInAnyOrder) {
    const SafetensorsFile file = tensor<float>("F32", "[2,3]", {0, 1, 2, 3, 4, 5});
    std::vector<Extent> extents;
    for (std::int64_t i = 0; i < 6; ++i) extents.push_back({i, i % 3 * 2 + i / 3, 1});
    std::vector<float> values(6);
    file.read(*file.find("w"), extents, values.data(), pulse_);
    EXPECT_EQ(values, (std::vector<float>{0, 3, 1, 4, 2, 5}));
    extents = {{4, 0, 2}, {0, 2, 0}, {0, 2, 2}, {3, 4, 2}};
    file.read(*file.find("w"), extents, values.data(), pulse_);
    EXPECT_EQ(values, (std::vector<float>{4, 5, 0, 1, 3, 4}));
    EXPECT_EQ(error_of([&] {
                  file.read(*file.find("w"), Range{5, 7}, values.data(), pulse_);
              }).code,
              ExitCode::broken_invariant);
}

/// A rank with some columns of a matrix must not need a call for each row.
TEST_F(SafetensorsFileTest, ReadsRowsOfColumnsTogetherAndSkipsWideGaps) {
    const std::vector<std::uint16_t> elements(1 << 20);
    const SafetensorsFile file = tensor("BF16", "[1024,1024]", elements);
    std::vector<float> values(1 << 20);
    faulty_storage.reads = 0;
    file.read(*file.find("w"), extents_of({1024, 1024}, {{{0, 1024}}, {512, 1024}}), values.data(), pulse_);
    EXPECT_LE(faulty_storage.reads, 3) << "2 MiB";
    faulty_storage.reads = 0;
    file.read(*file.find("w"), std::vector<Extent>{{0, 0, 1}, {1 << 19, 1, 1}}, values.data(), pulse_);
    EXPECT_EQ(faulty_storage.reads, 2) << "1 MiB between two elements is not read";
}

TEST_F(SafetensorsFileTest, RefusesWhatIsNotFinite) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    std::vector<float> all(2 * 300000, 1.0f);
    all[300007] = -kInfinity;
    const SafetensorsFile file = tensor("F32", "[2,300000]", all);
    const auto error = error_of([&] { read(file, "w"); });
    EXPECT_EQ(error.code, ExitCode::bad_data);
    const std::uint64_t place = file.find("w")->offset + 4 * 300007;
    EXPECT_THAT(error.what, HasSubstr(path_.string() + ": tensor \"w\": element [1, 7] (byte " +
                                      std::to_string(place) + " of the file) is NaN or Inf; "));
    std::vector<float> values(300000);
    EXPECT_NO_THROW(file.read(*file.find("w"), Range{0, 300000}, values.data(), pulse_)) << "of another rank";
    // Between the columns that a rank reads, too.
    EXPECT_NO_THROW(file.read(*file.find("w"), std::vector<Extent>{{300006, 0, 1}, {300008, 1, 1}},
                              values.data(), pulse_));
    EXPECT_THAT(error_of([&] {
                    read(tensor<double>("F64", "[2]", {1, 1e39}), "w");
                }).what,
                HasSubstr("element [1] (byte 71 of the file) is 1e+39, which is too large for f32"));
    EXPECT_THAT(error_of([&] { read(tensor<std::uint16_t>("F16", "[]", {0x7c01}), "w"); }).what,
                HasSubstr("element [] (byte "));
}

TEST_F(SafetensorsFileTest, RefusesWhatIsNoFileOfTensors) {
    EXPECT_THAT(refusal("").what, HasSubstr("it has 0 bytes, and a safetensors file at least 10"));
    EXPECT_EQ(refusal("1234567").code, ExitCode::bad_data);
    for (const std::uint64_t length : {0ul, 1ul, 3ul, 100'000'001ul, 1ul << 63, ~0ul, ~0ul - 7}) {
        const auto error = refusal(length_of(length) + "{}");
        EXPECT_EQ(error.code, ExitCode::bad_data);
        EXPECT_THAT(error.what, HasSubstr("give its header a length of " + std::to_string(length) +
                                          ", and 2 to 2 are possible"));
    }
    EXPECT_TRUE(file_of(file_with("{}", "")).tensors().empty());
    EXPECT_THAT(refusal("version https://git-lfs.github.com/spec/v1").what,
                HasSubstr("give its header a length of"));
    EXPECT_THAT(refusal(file_with("xx", "")).what, HasSubstr("does not begin with { at byte 8"));
}

/// A file that claims 100 MB of header, and has them as a hole on the disk.
TEST_F(SafetensorsFileTest, RefusesALongEmptyHeader) {
    write_bytes(path_, length_of(100'000'000) + "{");
    ASSERT_EQ(::truncate(path_.c_str(), 100'000'008), 0);
    EXPECT_THAT(error_of([&] { SafetensorsFile(path_, pulse_); }).what,
                HasSubstr("not valid JSON in UTF-8 at byte 9"));
    ASSERT_EQ(::truncate(path_.c_str(), 100'000'007), 0);
    EXPECT_THAT(error_of([&] { SafetensorsFile(path_, pulse_); }).what,
                HasSubstr("2 to 99999999 are possible"));
}

TEST_F(SafetensorsFileTest, TellsMissingFromDamagedAndFromFailingStorage) {
    const auto code_of = [&](const std::filesystem::path& path) {
        return error_of([&] { SafetensorsFile(path, pulse_); }).code;
    };
    EXPECT_EQ(code_of(folder_.path() / "none"), ExitCode::input_missing);
    EXPECT_EQ(code_of(folder_.path()), ExitCode::bad_data);
    ASSERT_EQ(::mkfifo((folder_.path() / "pipe").c_str(), 0600), 0);
    EXPECT_EQ(code_of(folder_.path() / "pipe"), ExitCode::bad_data);

    const SafetensorsFile file = tensor<float>("F32", "[2]", {1, 2});
    std::filesystem::create_symlink(path_, folder_.path() / "link");
    EXPECT_EQ(read(SafetensorsFile(folder_.path() / "link", pulse_), "w"), (std::vector<float>{1, 2}));
    faulty_storage.failing_reads = 1;
    EXPECT_EQ(read(file, "w"), (std::vector<float>{1, 2})) << "it is tried again";
    faulty_storage.failing_reads = 1;
    faulty_storage.error = EINVAL;  // not tried again
    const auto failed = error_of([&] { read(file, "w"); });
    EXPECT_EQ(failed.code, ExitCode::io_error);
    EXPECT_THAT(failed.what, HasSubstr("tensor \"w\", 8 bytes at byte "));
    ASSERT_EQ(::truncate(path_.c_str(), 20), 0);
    const auto shortened = error_of([&] { read(file, "w"); });
    EXPECT_EQ(shortened.code, ExitCode::bad_data);
    EXPECT_THAT(shortened.what, HasSubstr("tensor \"w\": the file now ends at byte "));
}

}  // namespace
}  // namespace maestro::safetensors
