#include "data/sample_file.hpp"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>
#include <limits>

#include "unit/data/sample_file_fixture.hpp"

extern "C" std::uint32_t H5_checksum_metadata(const void* data, std::size_t bytes, std::uint32_t start);

namespace maestro::data {
namespace {

/// A dataset made with a creation property list, holding zeros.
std::function<void(hid_t)> made_with(const char* name, hid_t type, hsize_t rows,
                                     std::function<void(hid_t)> configure) {
    return [=](hid_t file) {
        const hid_t space = H5Screate_simple(1, &rows, nullptr);
        const hid_t list = H5Pcreate(H5P_DATASET_CREATE);
        if (configure) configure(list);
        const hid_t set = H5Dcreate2(file, name, type, space, H5P_DEFAULT, list, H5P_DEFAULT);
        ASSERT_GE(set, 0);
        H5Dclose(set);
        H5Pclose(list);
        H5Sclose(space);
    };
}

TEST_F(SampleFileTest, RefusesATokenizerThatIsTooLarge) {
    writer_.instead["tokenizer_json"] =
        made_with("tokenizer_json", H5T_STD_U8LE, (hsize_t{64} << 20) + 1,
                  [](hid_t list) { H5Pset_alloc_time(list, H5D_ALLOC_TIME_EARLY); });
    SampleArrays arrays = small_file();
    arrays.tokenizer = "huggingface";
    write(arrays);
    const SampleFile file(path_);
    Pulse pulse;
    try {
        file.tokenizer_json(pulse);
        ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::bad_data);
        EXPECT_THAT(error.what(), HasSubstr("67108865 bytes; a tokenizer has at most 67108864"));
    }
}

TEST_F(SampleFileTest, ReadsWhatWasWritten) {
    const SampleArrays arrays = small_file();
    write(arrays);
    const SampleFile file(path_);
    EXPECT_EQ(file.size(), 3);
    EXPECT_EQ(file.vocabulary(), 260);
    EXPECT_EQ(file.markers(), Markers(256));
    EXPECT_EQ(file.channels(), 1);
    EXPECT_EQ(file.identity(), arrays.identity);
    EXPECT_EQ(file.tokenizer(), "bytes");
    EXPECT_EQ(file.index().tokens(1), 7);
    EXPECT_EQ(file.index().weight(0), 3.0);
    EXPECT_EQ(file.index().weight(1), 4.0);
    EXPECT_TRUE(file.index().items(0).empty());
    EXPECT_THAT(file.index().items(1), ElementsAre(Item{5, 7}, Item{8, 3}));

    Sample sample;
    file.read(1, sample);
    EXPECT_EQ(sample.id, 1);
    EXPECT_THAT(sample.tokens, ElementsAre(257, 256, 'x', '\n', 256, 'y', 258));
    EXPECT_THAT(sample.weights, ElementsAre(0, 0, 1, 1, 0, 1, 1));
    EXPECT_THAT(sample.flags, ElementsAre(0, 0, 1, 1, 0, 1, 1));
    ASSERT_EQ(sample.items.size(), 2u);
    EXPECT_EQ(sample.items[1].item.height, 8);
    EXPECT_EQ(sample.items[1].item.width, 3);
    EXPECT_EQ(sample.items[1].data,
              std::vector<std::uint8_t>(arrays.pixels.begin() + 35, arrays.pixels.end()));
    file.read(2, sample);
    EXPECT_THAT(sample.tokens, ElementsAre(257, 'c', 258));
    EXPECT_TRUE(sample.items.empty());
    EXPECT_THROW(file.read(3, sample), Error);
}

/// Sizes, memory and pixels are those of the pictures that take the places of others; text stays.
TEST_F(SampleFileTest, ReplacesPicturesInTheIndexAndInWhatIsRead) {
    write(small_file());
    SampleFile file(path_);
    Sample stored, replaced;
    file.read(1, stored);
    const std::int64_t bytes = file.bytes(1, SampleFields::all);
    file.replace_pictures({1, 1});
    EXPECT_THAT(file.index().items(1), ElementsAre(Item{8, 3}, Item{8, 3}));
    EXPECT_EQ(file.bytes(1, SampleFields::all), bytes - 5 * 7 + 8 * 3);
    for (const SampleFields fields :
         {SampleFields::all, SampleFields::text, SampleFields::pixels, SampleFields::sizes}) {
        file.read(1, replaced, fields);
        ASSERT_EQ(replaced.items.size(), 2u);
        for (const StoredItem& picture : replaced.items) {
            EXPECT_EQ(std::pair(picture.item.height, picture.item.width), std::pair(8, 3));
            if (fields == SampleFields::text || fields == SampleFields::sizes)
                EXPECT_TRUE(picture.data.empty());
            else
                EXPECT_EQ(picture.data, stored.items[1].data);
        }
        EXPECT_EQ(replaced.tokens.empty(), fields == SampleFields::pixels || fields == SampleFields::sizes);
        if (fields == SampleFields::all) {
            EXPECT_EQ(replaced.tokens, stored.tokens);
        }
    }
    file.replace_pictures({});
    file.read(1, replaced);
    EXPECT_EQ(replaced.items[0].data, stored.items[0].data);
    EXPECT_THAT(file.index().items(1), ElementsAre(Item{5, 7}, Item{8, 3}));
}

/// A reader of tokens meets no pixels, a reader of pixels no tokens, and opening neither.
TEST_F(SampleFileTest, ReadsOnlyThePartAskedFor) {
    SampleArrays arrays = small_file();
    arrays.pixels[3] ^= 1;
    arrays.tokens[12] = -1;
    write(arrays);
    const SampleFile file(path_);
    Sample sample;
    file.read(1, sample, SampleFields::text);
    EXPECT_THROW(file.read(1, sample, SampleFields::pixels), Error);
    file.read(2, sample, SampleFields::pixels);
    EXPECT_THROW(file.read(2, sample, SampleFields::text), Error);
}

TEST_F(SampleFileTest, ReadsFilesWithoutPicturesAndWithColour) {
    SampleArrays text;
    text.add({257, 'a', 258});
    write(text);
    EXPECT_EQ(SampleFile(path_).index().tokens(0), 3);

    SampleArrays colour;
    colour.channels = 3;
    colour.add({257, 256, 'a'}, {{2, 2}});
    write(colour);
    const SampleFile file(path_);
    Sample sample;
    file.read(0, sample);
    EXPECT_EQ(sample.items[0].data.size(), 12u);
}

TEST_F(SampleFileTest, LeavesTheErrorPrinterOfHdf5AsItWas) {
    H5E_auto2_t before = nullptr, after = nullptr;
    void* client = nullptr;
    H5Eget_auto2(H5E_DEFAULT, &before, &client);
    write(small_file());
    set_bytes(bytes().substr(0, 600));
    testing::internal::CaptureStderr();
    expect_bad();
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    H5Eget_auto2(H5E_DEFAULT, &after, &client);
    EXPECT_EQ(before, after);
}

TEST_F(SampleFileTest, RefusesWhatIsNotASampleFile) {
    expect_refused(ExitCode::input_missing, "No such file", "make_all.py");
    set_bytes("");
    expect_bad("not an HDF5 file");
    set_bytes("word,word\n1,2\n");
    expect_bad("not an HDF5 file");
    path_ = folder_;
    expect_bad("not a regular file");
    path_ = folder_ / "pipe";
    ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
    expect_bad("not a regular file");
    path_ = folder_ / "old.h5";
    writer_.checksummed_metadata = false;
    write(small_file());
    expect_bad("superblock version 0", "libver='latest'");
}

TEST_F(SampleFileTest, RefusesBadAttributes) {
    for (const char* name : {"format", "version", "vocabulary", "marker", "channels", "tokenizer",
                             "index_checksum", "identity"}) {
        writer_.leave_out = {name};
        write(small_file());
        expect_bad(name, "missing");
    }
    writer_.leave_out.clear();
    const auto with = [](auto change) {
        SampleArrays arrays = small_file();
        change(arrays);
        return arrays;
    };
    expect_bad_arrays(with([](auto& a) { a.format = "other"; }), "format", "maestro-samples");
    expect_bad_arrays(with([](auto& a) { a.version = 3; }), "version", "3");
    expect_bad_arrays(with([](auto& a) { a.version = 1; }), "version", "1, where this build reads 2");
    expect_bad_arrays(with([](auto& a) { a.tokenizer = "words"; }), "tokenizer", "words");
    expect_bad_arrays(with([](auto& a) { a.tokenizer = "huggingface"; }), "tokenizer_json", "missing");
    expect_bad_arrays(with([](auto& a) { a.tokenizer.assign(1000, 'x'); }), "tokenizer", "fixed length");
    expect_bad_arrays(with([](auto& a) { a.vocabulary = 0; }), "vocabulary");
    expect_bad_arrays(with([](auto& a) { a.vocabulary = std::int64_t{1} << 40; }), "vocabulary");
    expect_bad_arrays(with([](auto& a) { a.marker = 260; }), "marker");
    expect_bad_arrays(with([](auto& a) { a.marker = -1; }), "marker");
    expect_bad_arrays(with([](auto& a) { a.channels = 0; }), "channels");
    expect_bad_arrays(with([](auto& a) { a.channels = 1 << 30; }), "channels");
    writer_.instead["version"] = [](hid_t file) {
        const hsize_t rows = 3;
        const hid_t space = H5Screate_simple(1, &rows, nullptr);
        H5Aclose(H5Acreate2(file, "version", H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT));
        H5Sclose(space);
    };
    expect_bad_arrays(small_file(), "version", "single value");
    writer_.instead["version"] = [](hid_t file) {
        const hid_t space = H5Screate(H5S_SCALAR);
        H5Aclose(H5Acreate2(file, "version", H5T_IEEE_F64LE, space, H5P_DEFAULT, H5P_DEFAULT));
        H5Sclose(space);
    };
    expect_bad_arrays(small_file(), "version", "integer");
}

TEST_F(SampleFileTest, RefusesMissingForeignAndMistypedDatasets) {
    for (const char* name : {"tokens", "loss_weight", "flags", "index/sample_offsets",
                             "index/picture_offsets", "index/picture_shape", "index/pixel_offsets", "pixels",
                             "index/checksum", "index/loss_weight", "index/pixel_checksum"}) {
        SCOPED_TRACE(name);
        writer_ = {};
        writer_.leave_out = {name};
        write(small_file());
        expect_bad(name, "missing");
        writer_ = {};
        writer_.instead[name] = made_with(name, H5T_STD_I16BE, 4, nullptr);
        write(small_file());
        expect_bad(name);
        writer_.instead[name] = [name](hid_t file) {
            H5Gclose(H5Gcreate2(file, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
        };
        write(small_file());
        expect_bad(name, "not a dataset");
    }
    writer_ = {};
    writer_.instead["tokens"] = made_with("tokens", H5T_STD_I32BE, 14, nullptr);
    write(small_file());
    expect_bad("tokens", "little-endian int32");
    writer_ = {};
    writer_.instead["extra"] = made_with("extra", H5T_STD_I32LE, 1, nullptr);
    write(small_file());
    expect_bad("no member 'extra'");
    for (const char* name : {"extra1", "extra2", "extra3", "extra4", "extra5"})
        writer_.instead[name] = made_with(name, H5T_STD_I32LE, 1, nullptr);
    write(small_file());
    expect_bad("more members");
    writer_ = {};
    writer_.leave_out = {"index"};
    write(small_file());
    expect_bad("index", "missing");
    writer_ = {};
    writer_.instead["index"] = [](hid_t file) {
        H5Lcreate_external("other.h5", "/", file, "index", H5P_DEFAULT, H5P_DEFAULT);
    };
    write(small_file());
    expect_bad("index", "link");
}

TEST_F(SampleFileTest, RefusesOtherStorageAndLinks) {
    const hsize_t chunk = 2;
    const auto refused_as = [&](const std::function<void(hid_t)>& make, const char* what) {
        writer_.instead["tokens"] = make;
        write(small_file());
        expect_bad("tokens", what);
    };
    refused_as(made_with("tokens", H5T_STD_I32LE, 14, [&](hid_t l) { H5Pset_chunk(l, 1, &chunk); }),
               "chunked");
    refused_as(made_with("tokens", H5T_STD_I32LE, 14, [&](hid_t l) { H5Pset_layout(l, H5D_COMPACT); }),
               "compact");
    refused_as(
        made_with("tokens", H5T_STD_I32LE, 14, [](hid_t l) { H5Pset_external(l, "/etc/passwd", 0, 56); }),
        "other files");
    refused_as(made_with("tokens", H5T_STD_I32LE, 14,
                         [](hid_t l) {
                             const hsize_t rows = 14;
                             const hid_t space = H5Screate_simple(1, &rows, nullptr);
                             H5Pset_virtual(l, space, "/etc/passwd", "tokens", space);
                             H5Sclose(space);
                         }),
               "virtual");
    refused_as(
        [](hid_t file) {
            H5Lcreate_external("other.h5", "tokens", file, "tokens", H5P_DEFAULT, H5P_DEFAULT);
        },
        "link");
    refused_as([](hid_t file) { H5Lcreate_soft("/loss_weight", file, "tokens", H5P_DEFAULT, H5P_DEFAULT); },
               "link");
    refused_as(made_with("tokens", H5T_STD_I32LE, 14, nullptr), "never written");
    refused_as(made_with("tokens", H5T_STD_I32LE, hsize_t{1} << 47, nullptr), "tokens");
}

/// A header that claims a terabyte, with a superblock that agrees with the file's small size and a right
/// checksum.
TEST_F(SampleFileTest, AllocatesNothingThatAHeaderMerelyClaims) {
    writer_.instead["index/sample_offsets"] = [](hid_t file) {
        const hsize_t rows = hsize_t{1} << 37;
        const hid_t space = H5Screate_simple(1, &rows, nullptr);
        const hid_t set = H5Dcreate2(file, "index/sample_offsets", H5T_STD_I64LE, space, H5P_DEFAULT,
                                     H5P_DEFAULT, H5P_DEFAULT);
        H5Fflush(file, H5F_SCOPE_LOCAL);  // metadata gets its place before the data
        const hsize_t at = 0, one = 1;
        const std::int64_t value = 0;
        const hid_t memory = H5Screate_simple(1, &one, nullptr);
        H5Sselect_hyperslab(space, H5S_SELECT_SET, &at, nullptr, &one, nullptr);
        ASSERT_GE(H5Dwrite(set, H5T_STD_I64LE, memory, space, H5P_DEFAULT, &value), 0);
        H5Sclose(memory);
        H5Dclose(set);
        H5Sclose(space);
    };
    write(small_file());
    ASSERT_GT(std::filesystem::file_size(path_), std::uintmax_t{1} << 40);
    const std::uint64_t small = 1 << 16;
    std::filesystem::resize_file(path_, small);
    std::string whole = bytes();
    constexpr std::size_t kEndOfFile = 28, kChecksum = 44;  // in a superblock of version 2 or 3
    std::memcpy(whole.data() + kEndOfFile, &small, sizeof small);
    const std::uint32_t checksum = H5_checksum_metadata(whole.data(), kChecksum, 0);
    std::memcpy(whole.data() + kChecksum, &checksum, sizeof checksum);
    set_bytes(whole);
    expect_bad("sample_offsets", "beyond the file's 65536 bytes");
}

TEST_F(SampleFileTest, RefusesABadIndex) {
    const auto refused = [&](auto change, auto... fragments) { expect_bad_change(change, fragments...); };
    refused([](auto& a) { a.sample_offsets[1] = 12; }, "sample_offsets", "element 2", "out of order");
    refused([](auto& a) { a.sample_offsets[1] = 0; }, "sample_offsets", "element 1");
    refused([](auto& a) { a.sample_offsets[1] = std::numeric_limits<std::int64_t>::min(); }, "sample_offsets",
            "element 1");
    refused([](auto& a) { a.sample_offsets[3] = std::numeric_limits<std::int64_t>::max(); }, "sample_offsets",
            "element 3");
    refused([](auto& a) { a.sample_offsets[0] = -4; }, "sample_offsets", "element 0");
    refused([](auto& a) { a.sample_offsets[3] = 13; }, "sample_offsets", "ends at 13");
    refused([](auto& a) { a.sample_offsets.clear(); }, "sample_offsets");
    refused([](auto& a) { a = SampleArrays{}; }, "no samples");
    refused([](auto& a) { a.picture_offsets[1] = 3; }, "picture_offsets");
    refused([](auto& a) { a.picture_offsets.insert(a.picture_offsets.begin(), 0); }, "picture_offsets",
            "not as long");
    refused([](auto& a) { a.checksum.pop_back(); }, "checksum", "not one for each");
    refused([](auto& a) { a.loss_weight.pop_back(); }, "loss_weight", "not as long");
    refused([](auto& a) { a.flags.push_back(0); }, "flags", "not as long");
    refused([](auto& a) { a.pixels.pop_back(); }, "pixel_offsets");
    refused([](auto& a) { a.pixel_offsets[1] -= 1; }, "pixel_offsets", "5 x 7");
    refused([](auto& a) { a.pixel_offsets.erase(a.pixel_offsets.begin() + 1); }, "pixel_offsets", "one more");
    refused([](auto& a) { a.picture_shape[0] = 0; }, "picture_shape", "element 0", "0 x 7");
    refused([](auto& a) { a.picture_shape[3] = -3; }, "picture_shape", "element 1");
    refused([](auto& a) { a.picture_shape[2] = 4097; }, "picture_shape", "4097");
    refused([](auto& a) { a.picture_shape = {1 << 30, 1 << 30, 8, 3}; }, "picture_shape");
    refused([](auto& a) { a.weight[1] = -1; }, "index/loss_weight", "element 1", "finite");
    refused([](auto& a) { a.weight[2] = std::numeric_limits<double>::quiet_NaN(); }, "index/loss_weight",
            "element 2", "finite");
    refused([](auto& a) { a.weight[2] = 1e300; }, "index/loss_weight", "element 2", "add up to 2");
    refused([](auto& a) { a.weight.pop_back(); }, "index/loss_weight", "not one for each sample");
    refused([](auto& a) { a.pixel_checksum.push_back(1); }, "index/pixel_checksum", "each picture");
    refused([](auto& a) { a.pixel_checksum[1] ^= 1; }, "index/pixel_checksum", "element 1", "sample 1");
    refused([](auto& a) { a.checksum[2] ^= 1; }, "index/checksum", "element 2");
}

TEST_F(SampleFileTest, RefusesBadTokensAndWeights) {
    const auto refused = [&](auto change, auto... fragments) { expect_bad_change(change, fragments...); };
    refused([](auto& a) { a.tokens[2] = 260; }, "tokens", "element 2", "token id 260", "vocabulary of 260");
    refused([](auto& a) { a.tokens[12] = -1; }, "tokens", "element 12", "sample 2");
    refused([](auto& a) { a.tokens[8] = 'm'; }, "sample 1 has 1 markers", "2 pictures");
    refused([](auto& a) { a.tokens[1] = 256, a.loss_weight[1] = 0, a.flags[1] = 0; },
            "sample 0 has 1 markers");
    refused([](auto& a) { a.loss_weight[1] = -1; }, "loss_weight", "element 1");
    refused([](auto& a) { a.loss_weight[1] = std::numeric_limits<float>::quiet_NaN(); }, "loss_weight",
            "finite");
    refused([](auto& a) { a.loss_weight[1] = std::numeric_limits<float>::infinity(); }, "loss_weight",
            "finite");
    refused([](auto& a) { a.loss_weight[0] = 1; }, "loss_weight", "first token");
    refused([](auto& a) { a.loss_weight[5] = 1; }, "loss_weight", "element 5", "markers");
    refused([](auto& a) { a.flags[5] = 1; }, "flags", "element 5");
    refused([](auto& a) { a.pixels[3] ^= 1; }, "checksum", "sample 1");
    refused([](auto& a) { a.pixels[36] ^= 1; }, "checksum", "sample 1");
    refused([](auto& a) { a.tokens[1] = 'z'; }, "checksum", "sample 0");
    refused([](auto& a) { a.loss_weight[1] = 2; }, "checksum", "sample 0");
}

TEST_F(SampleFileTest, KnowsMarkersOnceItHasLookedForThem) {
    {
        write(small_file());
        SampleFile file(path_);
        Pulse quiet;
        EXPECT_TRUE(file.index().markers(1).empty());
        std::vector<std::int32_t> sum(2, 0);
        for (int part = 0; part < 4; ++part) {  // more readers than samples
            const auto found = file.find_markers({part, 4}, quiet);
            for (std::size_t i = 0; i < 2; ++i) sum[i] += found[i];
        }
        EXPECT_THAT(sum, ElementsAre(1, 4));
        file.find_markers({}, quiet);
        EXPECT_THAT(file.index().markers(1), ElementsAre(1, 4));
        EXPECT_TRUE(file.index().markers(0).empty());
    }
    SampleArrays lacking = small_file();
    lacking.tokens[8] = 'm';  // the checksum is of no concern yet
    write(lacking);
    SampleFile file(path_);
    Pulse quiet;
    try {
        file.find_markers({}, quiet);
        ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::bad_data);
        EXPECT_THAT(error.what(), AllOf(HasSubstr("sample 1 has 1 markers"), HasSubstr("2 pictures")));
    }
}

}  // namespace
}  // namespace maestro::data
