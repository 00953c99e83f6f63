#include "tokens/vocabulary.hpp"

#include <gmock/gmock.h>

#include <string>

#include "base/error.hpp"
#include "base/text_file.hpp"

namespace maestro::tokens::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Vocabulary of(const std::string& json) {
    return Vocabulary::from_json(json, "t.json");
}
std::string difference(const std::string& here, const std::string& there) {
    return of(here).difference(of(there), "a", "b");
}

constexpr const char* kSmall =
    R"({"added_tokens": [{"id": 2, "content": "<end>", "special": true}],
        "model": {"vocab": {"a": 0, "b": 1}, "merges": [["a", "b"], "b a"]}})";

TEST(Vocabulary, IsThatOfAnyKindOfTokenizer) {
    const auto read = [](const char* name) {
        return read_text_file(std::string(MAESTRO_SOURCE_DIR "/tests/golden/tokenizers/") + name).value();
    };
    EXPECT_EQ(of(read("byte_level.json")).size(), 284u);
    EXPECT_EQ(of(read("byte_fallback.json")).size(), 320u);  // its vocabulary has the added tokens, too
    EXPECT_EQ(of(R"({"model": {"type": "Unigram", "vocab": [["a", 0.0], ["b", -1.5], ["<end>", -2]]}})")
                  .difference(of(kSmall), "a", "b"),
              "");
}

TEST(Vocabulary, IsEqualWhateverTheFormOfTheFile) {
    EXPECT_EQ(difference(kSmall, R"({"model": {"merges": [], "vocab": {"\u0062": 1, "<end>": 2, "a": 0}},
                                     "version": "1.0", "added_tokens": [{"content": "<end>", "id": 2}]})"),
              "");
    Vocabulary with_config = of(R"({"model": {"vocab": {"a": 0, "b": 1}}})");
    with_config.add_config(R"({"added_tokens_decoder": {"2": {"content": "<end>", "special": true}},
                               "eos_token": "<end>"})",
                           "c.json");
    EXPECT_EQ(with_config.difference(of(kSmall), "a", "b"), "");
}

TEST(Vocabulary, SaysWhatDiffers) {
    EXPECT_EQ(
        difference(kSmall, R"({"model": {"vocab": {"a": 0, "c": 1, "<end>": 3}}})"),
        "3 tokens in a and 3 in b; the first id that differs is 1: 'b' and 'c'; special tokens: '<end>' is "
        "2 and 3");
    EXPECT_EQ(difference(kSmall, R"({"model": {"vocab": {"a": 0}}})"),
              "3 tokens in a and 1 in b; the first id that differs is 1: 'b' and no token; special tokens: "
              "'<end>' is 2 and none");
    EXPECT_THAT(difference(R"({"model": {"vocab": {"b": 1}}})", kSmall),
                HasSubstr("the first id that differs is 0: no token and 'a'"));
    const std::string cut =
        difference(kSmall, R"({"model": {"vocab": {"\u001b[2J)" + std::string(9000, 'x') + R"(": 0}}})");
    EXPECT_THAT(cut, AllOf(HasSubstr("'\\x1b[2Jxxx"), HasSubstr("xxx...'")));
    EXPECT_LT(cut.size(), 300u);
}

TEST(Vocabulary, RefusesWhatIsNoTokenizer) {
    const auto refusal = [](const std::string& text) -> std::string {
        try {
            of(text);
            return "";
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ExitCode::bad_data);
            return error.what();
        }
    };
    for (const char* text : {"{}", R"({"model": {"vocab": []}})", R"({"model": [{"vocab": {"a": 0}}]})"})
        EXPECT_THAT(refusal(text), HasSubstr("t.json: holds no tokens")) << text;
    for (const char* text : {"", "{", R"({"model": {"vocab": {"a": 0)", "\xff", "[]", "7"})
        EXPECT_THAT(refusal(text), HasSubstr("t.json: not a JSON object")) << text;
    for (const char* id : {"-1", "2147483648", "0.5", "1e300"})
        EXPECT_THAT(
            refusal(std::string(R"({"model": {"vocab": {"a": )") + id + "}}}"),
            AllOf(HasSubstr("t.json: the token 'a'"), HasSubstr(id == std::string("1e300") ? "id" : id)))
            << id;
    EXPECT_THAT(refusal(R"({"added_tokens": [{"content": "a"}]})"),
                HasSubstr("the token 'a' has the id null"));
    EXPECT_THAT(refusal(R"({"added_tokens_decoder": {"1x": {"content": "a"}}})"),
                HasSubstr("has the id \"1x\""));
}

}  // namespace
}  // namespace maestro::tokens::test
