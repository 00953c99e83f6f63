#include "safetensors/header.hpp"

#include <gmock/gmock.h>

#include <fstream>
#include <sstream>
#include <string>

#include "base/error.hpp"
#include "support/errors.hpp"
#include "unit/safetensors/golden.hpp"

namespace maestro::safetensors {
namespace {

using safetensors_test::kGolden;
using safetensors_test::unescape;
using testing::HasSubstr;
using testing_support::error_of;

TEST(Header, IsRefusedWhereTheReferenceRefusesIt) {
    std::ifstream stream(kGolden / "headers.txt");
    std::string verdict, line;
    std::uint64_t data_bytes = 0;
    int cases = 0;
    while (stream >> verdict >> data_bytes && stream.get() == ' ' && std::getline(stream, line)) {
        SCOPED_TRACE(line);
        ++cases;
        const std::string text = unescape(line);
        if (verdict == "accept") {
            EXPECT_NO_THROW(parse_header(text, "FILE", data_bytes));
        } else {
            const auto error = error_of([&] { parse_header(text, "FILE", data_bytes); });
            EXPECT_EQ(error.code, ExitCode::bad_data);
            EXPECT_TRUE(error.what.starts_with("FILE: ")) << error.what;
            EXPECT_LT(error.what.size(), 300u);
        }
    }
    EXPECT_GE(cases, 90);
}

TEST(Header, GivesTensorsByNameWithTheirPlaces) {
    const std::string text =
        R"({"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},"__metadata__":{"format":"pt"},)"
        R"("a":{"data_offsets":[0,8],"dtype":"F64","shape":[]},"c":{"dtype":"I8","shape":[4,0],"data_offsets":[8,8]}})";
    const Header header = parse_header(text, "FILE", 20);
    ASSERT_EQ(header.tensors.size(), 3u);
    EXPECT_EQ(header.tensors[0].name, "a");
    EXPECT_EQ(header.tensors[0].type, StoredType::f64);
    EXPECT_EQ(header.tensors[0].elements, 1);
    EXPECT_EQ(header.tensors[0].offset, 8 + text.size());
    EXPECT_EQ(header.tensors[1].shape, (std::vector<std::int64_t>{2, 3}));
    EXPECT_EQ(header.tensors[1].elements, 6);
    EXPECT_EQ(header.tensors[1].offset, 8 + text.size() + 8);
    EXPECT_EQ(header.tensors[1].bytes, 12u);
    EXPECT_EQ(header.tensors[2].elements, 0);
    EXPECT_EQ(header.metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
}

std::string refusal(const std::string& text, std::uint64_t data_bytes) {
    return error_of([&] { parse_header(text, "FILE", data_bytes); }).what;
}

TEST(Header, SaysWhatIsWrong) {
    const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
    EXPECT_EQ(
        refusal("{" + a + "}", 6),
        "FILE: tensor \"a\": it ends at byte 70 of the file, which has 68; the file is cut off: download the "
        "file again or convert the model again");
    EXPECT_THAT(refusal("{" + a + "}", 10),
                HasSubstr("FILE: 2 bytes follow the last tensor, from byte 70 on"));
    EXPECT_THAT(refusal("{" + a + "," + a + "}", 8),
                HasSubstr("tensor \"a\": it stands twice in the header"));
    EXPECT_THAT(
        refusal("{" + a + ",\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[12,16]}}", 16),
        HasSubstr("tensor \"b\": it begins at byte 12 of the data, and the tensor before it ends at byte 8"));
    EXPECT_THAT(refusal("{" + a + "} x", 8), HasSubstr("not valid JSON in UTF-8 at byte 63 of the file"));
    EXPECT_THAT(refusal("{" + a + std::string("}\0\0", 3), 8),
                HasSubstr("not valid JSON in UTF-8 at byte 62 of"));
    EXPECT_THAT(refusal(R"({"a":{"dtype":"F33"}})", 0),
                HasSubstr("tensor \"a\": its dtype \"F33\" is unknown"));
    EXPECT_THAT(refusal(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4),
                HasSubstr("its shape [2] of F32 has 8 bytes, its data_offsets are 0 to 4"));
    EXPECT_THAT(refusal(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0),
                HasSubstr("its shape [4294967296, 4294967296] is larger than any file"));
}

/// A name must not write to the terminal, or flood it.
TEST(Header, EscapesAndShortensNames) {
    EXPECT_THAT(refusal(R"({"\u001b[2J\n":1})", 0), HasSubstr(R"(tensor "\u001b[2J\n": its description)"));
    const std::string what = refusal("{\"" + std::string(5000, 'n') + "\":1}", 0);
    EXPECT_LT(what.size(), 300u);
    EXPECT_THAT(what, HasSubstr("nnn\"... (5000 bytes): its description"));
}

}  // namespace
}  // namespace maestro::safetensors
