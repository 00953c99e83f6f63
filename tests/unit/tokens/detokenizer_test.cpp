// Token ids to text, against what the package tokenizers decodes
// (tests/golden/tokenizers/make_tokenizers.py).
#include "tokens/detokenizer.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/text_file.hpp"

namespace maestro::tokens::test {
namespace {

using Ids = std::vector<std::int32_t>;

std::string read(const std::string& name) {
    return read_text_file(MAESTRO_SOURCE_DIR "/tests/golden/tokenizers/" + name).value();
}

class Golden : public testing::TestWithParam<std::string> {};

TEST_P(Golden, TextIsThatOfTokenizers) {
    const Detokenizer detokenizer = Detokenizer::from_json(read(GetParam() + ".json"), "t.json");
    const auto cases = nlohmann::json::parse(read(GetParam() + "_cases.json"));
    EXPECT_GT(cases.size(), 80u);
    for (const auto& each : cases)
        EXPECT_EQ(detokenizer.text(each.at("ids").get<Ids>()), each.at("text").get<std::string>())
            << each.at("ids").dump();
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, Golden, testing::Values("byte_level", "byte_fallback"),
                         [](const auto& each) { return each.param; });

TEST(Detokenizer, KnowsSpecialTokensAndIdsBeyondThem) {
    const std::string json = read("byte_level.json");
    const Detokenizer detokenizer = Detokenizer::from_json(json, "t.json");
    const auto document = nlohmann::json::parse(json);
    Ids special;
    for (const auto& token : document.at("added_tokens"))
        if (detokenizer.is_special(token.at("id").get<std::int32_t>())) special.push_back(token.at("id"));
    EXPECT_EQ(detokenizer.text(special), "<|im_start|><|im_end|>");  // of four added tokens
    EXPECT_FALSE(detokenizer.is_special(0));
    EXPECT_TRUE(detokenizer.is_special(1000));  // text has no such token
    EXPECT_EQ(detokenizer.text(Ids{1000, -1}), "<id 1000><id -1>");
}

TEST(Detokenizer, OfBytesJoinsTheBytesOfCharacters) {
    const Detokenizer detokenizer = Detokenizer::bytes();
    EXPECT_EQ(detokenizer.text(Ids{257, 'K', 0xC3, 0xB6, 'l', 'n', 258}), "<begin>Köln<end>");
    EXPECT_EQ(detokenizer.text(Ids{0xC3, 258, 0xB6}), "\uFFFD<end>\uFFFD");
    EXPECT_TRUE(detokenizer.is_special(258));
    EXPECT_FALSE(detokenizer.is_special(255));
}

TEST(Detokenizer, RefusesWhatItDoesNotKnow) {
    const auto refusal = [](const std::string& text) -> std::string {
        try {
            Detokenizer::from_json(text, "t.json");
            return "";
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ExitCode::bad_data);
            return error.what();
        }
    };
    using testing::HasSubstr;
    EXPECT_THAT(refusal("{\"model\""), HasSubstr("t.json: not a JSON object"));
    EXPECT_THAT(refusal(R"({"decoder": {"type": "WordPiece"}, "model": {"vocab": {}}})"),
                HasSubstr("'WordPiece' is not built"));
    EXPECT_THAT(refusal(R"({"decoder": null, "model": {"vocab": {}}})"), HasSubstr("'null' is not built"));
    EXPECT_THAT(refusal(R"({"decoder": {"type": "ByteLevel"}, "model": {"vocab": [["a", 0]]}})"),
                HasSubstr("model.vocab is not an object"));
    EXPECT_THAT(refusal(std::string(100000, '[')), HasSubstr("not a JSON object"));
    EXPECT_THAT(refusal("{\"decoder\":" + std::string(100000, '[')), HasSubstr("more than 64 levels"));
    std::string many = R"({"decoder": {"type": "ByteLevel"}, "model": {"vocab": {"":0)";
    for (int i = 0; i < 1 << 22; ++i) many += ",\"\":0";
    EXPECT_THAT(refusal(many + "}}}"), HasSubstr("it has more than 4194304 tokens"));
    for (const char* id : {"-1", "1.5", "\"0\"", "1000000000000"})
        EXPECT_THAT(refusal(R"({"decoder": {"type": "ByteLevel"}, "model": {"vocab": {"a\u001b": )" +
                            std::string(id) + "}}}"),
                    HasSubstr("the token 'a\\x1b' has the id " + std::string(id)));
}

/// In any order, with large ids: memory grows with the text and not with the ids. The last of an id counts.
TEST(Detokenizer, ReadsMembersWhereverTheyStand) {
    const Detokenizer detokenizer = Detokenizer::from_json(
        R"({"added_tokens": [{"content": "<e>", "id": 2000000000, "special": true}, {"content": "m", "id": 1}],
            "model": {"merges": [["a", "b"], {"vocab": {"x": 7}}], "vocab": {"merges": 0, "n": 2, "o": 2}},
            "decoder": {"type": "ByteLevel"}})",
        "t");
    EXPECT_EQ(detokenizer.text(Ids{0, 1, 2, 2000000000, 7}), "mergesmo<e><id 7>");
    EXPECT_TRUE(detokenizer.is_special(2000000000));
    EXPECT_FALSE(detokenizer.is_special(1));
}

TEST(EndTokens, AreANumberOrAList) {
    EXPECT_EQ(end_tokens(R"({"eos_token_id": 2})"), Ids{2});
    EXPECT_EQ(end_tokens(R"({"eos_token_id": [151645, 151643]})"), (Ids{151645, 151643}));
    EXPECT_EQ(end_tokens(R"({"text_config": {"eos_token_id": 7}})"), Ids{7});
    for (const char* none : {"", "[]", "{}", R"({"eos_token_id": null})", R"({"eos_token_id": "</s>"})",
                             R"({"eos_token_id": -1})"})
        EXPECT_EQ(end_tokens(none), Ids{}) << none;
}

TEST(Utf8, InvalidBytesAreReplacedAsInPython) {
    // bytes.decode("utf-8", "replace"): the longest part of a character is one U+FFFD.
    EXPECT_EQ(valid_utf8("a\xE4\xB8z"), "a\uFFFDz");
    EXPECT_EQ(valid_utf8("\xF0\x9F\x99"), "\uFFFD");
    EXPECT_EQ(valid_utf8("\xF0\x80\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
    EXPECT_EQ(valid_utf8("\xC0\xAF\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD");
    EXPECT_EQ(valid_utf8("\xF4\x90\x80\x80\xFF"), "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD");
    EXPECT_EQ(valid_utf8("é€𝄞"), "é€𝄞");
}

TEST(Utf8, ControlsCannotReachATerminal) {
    EXPECT_EQ(escape_controls("a\tb\r\nc\x1b[31m\x7f"), "a\\tb\\r\nc\\x1b[31m\\x7f");
    EXPECT_EQ(escape_controls("\u009b1m \u202e \u200b \ufeff"), "\\u{009b}1m \\u{202e} \\u{200b} \\u{feff}");
    EXPECT_EQ(escape_controls("Köln 👩\u200d💻"), "Köln 👩\u200d💻");
}

}  // namespace
}  // namespace maestro::tokens::test
