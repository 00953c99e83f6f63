#include "safetensors/safetensors_folder.hpp"

#include <gmock/gmock.h>

#include <bit>
#include <string>

#include "base/error.hpp"
#include "support/errors.hpp"
#include "support/scratch_folder.hpp"
#include "unit/safetensors/golden.hpp"

namespace maestro::safetensors {
namespace {

namespace fs = std::filesystem;

using safetensors_test::file_with;
using safetensors_test::kGolden;
using safetensors_test::write_bytes;
using testing::HasSubstr;
using testing_support::error_of;

class SafetensorsFolderTest : public testing::Test {
protected:
    /// A file with scalars of these names.
    void put(const std::string& file, const std::vector<std::string>& names) {
        std::string json, data;
        for (const std::string& name : names) {
            const std::string begin = std::to_string(data.size()), end = std::to_string(data.size() + 4);
            json += (json.empty() ? "{\"" : ",\"") + name +
                    R"(":{"dtype":"F32","shape":[],"data_offsets":[)" + begin + "," + end + "]}";
            data += "1234";
        }
        write_bytes(folder_.path() / file, file_with(json + "}", data));
    }
    void put_index(const std::string& map) {
        write_bytes(folder_.path() / kIndexFile, R"({"metadata":{"total_size":3},"weight_map":)" + map + "}");
    }
    testing_support::Thrown refusal() {
        return error_of([&] { SafetensorsFolder(folder_.path(), pulse_).open_all(); });
    }
    std::string refused_map(const std::string& map) {
        put_index(map);
        const auto error = refusal();
        EXPECT_EQ(error.code, ExitCode::bad_data) << error.what;
        EXPECT_THAT(error.what, HasSubstr(folder_.path().string()));
        return error.what;
    }

    testing_support::ScratchFolder folder_;
    Pulse pulse_;
};

TEST_F(SafetensorsFolderTest, ReadsOneFileAndFiveToTheSameBits) {
    SafetensorsFolder single(kGolden / "single", pulse_), sharded(kGolden / "sharded", pulse_);
    EXPECT_NO_THROW(sharded.open_all());
    const auto specs = safetensors_test::model();
    ASSERT_EQ(single.entries().size(), specs.size());
    ASSERT_EQ(sharded.entries().size(), specs.size());
    for (const TensorSpec& spec : specs) {
        EXPECT_TRUE(single.has(spec.name));
        std::vector<std::vector<float>> read;
        for (SafetensorsFolder* const folder : {&single, &sharded}) {
            const auto found = folder->find(spec.name);
            EXPECT_EQ(found.tensor->type, spec.type);
            EXPECT_EQ(found.tensor->shape, spec.shape);
            read.emplace_back(spec.elements(), -2.0f);
            found.file->read(*found.tensor, Range{0, spec.elements()}, read.back().data(), pulse_);
        }
        EXPECT_EQ(read[0], read[1]) << spec.name;
    }
    EXPECT_FALSE(single.has("model.layers.0"));
    const auto error = error_of([&] { sharded.find("lm_head.bias"); });
    EXPECT_EQ(error.code, ExitCode::bad_data);
    EXPECT_THAT(error.what, HasSubstr("tensor \"lm_head.bias\": none of its files holds it"));
}

/// In the cache of huggingface_hub all files are links into another folder.
TEST_F(SafetensorsFolderTest, FollowsLinks) {
    for (const auto& entry : fs::directory_iterator(kGolden / "sharded"))
        fs::create_symlink(entry.path(), folder_.path() / entry.path().filename());
    SafetensorsFolder linked(folder_.path(), pulse_);
    EXPECT_NO_THROW(linked.open_all());
    fs::remove(folder_.path() / kIndexFile);
    fs::create_symlink("elsewhere", folder_.path() / kSingleFile);
    EXPECT_THAT(refusal().what, HasSubstr("model.safetensors: No such file or directory; download"))
        << "a link to nothing";
    fs::remove(folder_.path() / kSingleFile);
    fs::create_symlink(kSingleFile, folder_.path() / kSingleFile);
    EXPECT_EQ(refusal().code, ExitCode::input_missing) << "a link to itself";
    EXPECT_THAT(refusal().what, HasSubstr("model.safetensors: Too many levels of symbolic links; "));
}

TEST_F(SafetensorsFolderTest, OpensOnlyTheFilesThatItNeeds) {
    put("a.safetensors", {"x"});
    write_bytes(folder_.path() / "b.safetensors", "damaged");
    put_index(R"({"x":"a.safetensors","y":"b.safetensors"})");
    SafetensorsFolder folder(folder_.path(), pulse_);
    EXPECT_EQ(folder.find("x").tensor->elements, 1);
    EXPECT_EQ(folder.find("x").file, folder.find("x").file);
    for (int again = 0; again < 2; ++again)
        EXPECT_THAT(error_of([&] { folder.find("y"); }).what, HasSubstr("b.safetensors: it has 7 bytes"));
}

TEST_F(SafetensorsFolderTest, RefusesAnIndexThatDisagreesWithItsFiles) {
    put("a.safetensors", {"x", "y"});
    put("b.safetensors", {"z"});
    put_index(R"({"y":"a.safetensors","x":"a.safetensors","z":"b.safetensors"})");
    EXPECT_NO_THROW(SafetensorsFolder(folder_.path(), pulse_).open_all());
    EXPECT_THAT(
        refused_map(R"({"x":"a.safetensors","y":"a.safetensors","v":"b.safetensors","z":"b.safetensors"})"),
        HasSubstr("b.safetensors: tensor \"v\": model.safetensors.index.json says that it is in this file"));
    EXPECT_THAT(refused_map(R"({"x":"a.safetensors","z":"b.safetensors"})"),
                HasSubstr("a.safetensors: tensor \"y\": model.safetensors.index.json does not name it"));
    put("b.safetensors", {"z", "y"});
    EXPECT_THAT(
        refused_map(R"({"x":"a.safetensors","y":"a.safetensors","z":"b.safetensors"})"),
        HasSubstr(
            "b.safetensors: tensor \"y\": model.safetensors.index.json says that it is in a.safetensors; "
            "a tensor may be in one file only"));
    put_index(R"({"x":"a.safetensors","y":"a.safetensors","z":"c.safetensors"})");
    const auto missing = refusal();
    EXPECT_EQ(missing.code, ExitCode::input_missing);
    EXPECT_THAT(missing.what,
                HasSubstr("c.safetensors: it is missing, and model.safetensors.index.json names it"));
    // Not checked before the file is opened, but then by every rank that opens it.
    put_index(R"({"x":"a.safetensors","y":"b.safetensors","z":"b.safetensors"})");
    SafetensorsFolder folder(folder_.path(), pulse_);
    EXPECT_EQ(folder.find("z").tensor->elements, 1);
    for (int again = 0; again < 2; ++again)
        EXPECT_THAT(error_of([&] { folder.find("x"); }).what, HasSubstr("a.safetensors: tensor \"y\""));
}

TEST_F(SafetensorsFolderTest, RefusesNamesThatAreNoFilesOfTheFolder) {
    put("a.safetensors", {"x"});
    for (const char* name : {"../a.safetensors", "/etc/a.safetensors", "./a.safetensors", "b/a.safetensors",
                             "..safetensors", R"(..\\a.safetensors)", R"(a.safetensors\u0000.safetensors)"})
        EXPECT_THAT(refused_map(R"({"x":")" + std::string(name) + "\"}"),
                    HasSubstr("tensor \"x\": weight_map gives \"" + std::string(name) +
                              "\", which is no file of this folder"));
    for (const std::string name : {"", "..", ".", "a.bin", "pytorch_model.bin"})
        refused_map(R"({"x":")" + name + "\"}");
    EXPECT_THAT(refused_map(R"({"x":"pytorch_model.bin"})"), HasSubstr("is no *.safetensors file"));
    refused_map(R"({"x":")" + std::string(300, 'n') + ".safetensors\"}");
}

TEST_F(SafetensorsFolderTest, RefusesAnIndexOfAnotherForm) {
    put("a.safetensors", {"x"});
    EXPECT_THAT(refused_map(R"({"x":"a.safetensors","x":"a.safetensors"})"),
                HasSubstr("tensor \"x\": it stands twice in weight_map"));
    for (const char* map : {"{}", "null", "[]", "\"x\"", "5"}) refused_map(map);
    for (const char* value : {"5", "null", "{}", "[\"a.safetensors\"]", "true"})
        refused_map(R"({"x":)" + std::string(value) + "}");
    refused_map(R"({"x":"a.safetensors"},"weight_map":{"x":"a.safetensors"})");
    refused_map(R"({"x":"a.safetensors"},"more":[[[[1]]]])");
    refused_map(R"({"x":"a.safetensors"})" + std::string("}\0{", 3));
    for (const char* text : {"", "{", "[]", "5", "{}", R"({"weight_map":{"x":"a.safetensors"}} x)"}) {
        write_bytes(folder_.path() / kIndexFile, text);
        EXPECT_EQ(refusal().code, ExitCode::bad_data) << text;
    }
    put_index(R"({"x":"a.safetensors"},"more":[[[1]]])");
    EXPECT_NO_THROW(SafetensorsFolder(folder_.path(), pulse_));
}

TEST_F(SafetensorsFolderTest, SaysWhyAFolderHoldsNoModel) {
    EXPECT_EQ(refusal().code, ExitCode::input_missing);
    EXPECT_THAT(refusal().what, HasSubstr("name a folder of a model in Hugging Face's format"));
    EXPECT_EQ(error_of([&] { SafetensorsFolder(folder_.path() / "none", pulse_); }).code,
              ExitCode::input_missing);
    write_bytes(folder_.path() / "pytorch_model.bin", "");
    EXPECT_EQ(refusal().code, ExitCode::bad_data);
    EXPECT_THAT(refusal().what, HasSubstr("save_pretrained()"));
    write_bytes(folder_.path() / "adapter_config.json", "{}");
    EXPECT_THAT(refusal().what, HasSubstr("LoRA adapter"));
    put("model.safetensors", {"x"});
    EXPECT_NO_THROW(SafetensorsFolder(folder_.path(), pulse_));
    put("a.safetensors", {"x"});
    EXPECT_THAT(refused_map(R"({"x":"a.safetensors"})"), HasSubstr("the folder holds two models"));
    put_index(R"({"x":"model.safetensors"})");
    EXPECT_NO_THROW(SafetensorsFolder(folder_.path(), pulse_).open_all());
}

}  // namespace
}  // namespace maestro::safetensors
