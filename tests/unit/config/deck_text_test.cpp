// A deck whose keys are changed keeps everything else.
#include "config/deck_text.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"

namespace maestro::config {
namespace {

constexpr const char* kDeck = R"(# Größe: a comment
[run]
name = "a"   # the name

[data]
global_batch = 16

[[section]]
name = "vision"
micro_batch = 1          # samples
window = 16

[[section]]
  name = "language"
  [section.layout]
  dp = 4                 # replicas
  stages = [
    1,                   # first
    2,
  ]                      # layers

[section.lora]
rank = 8

[[edge]]
from = "vision"
to = "language"
)";

TEST(DeckText, ATableWithinATableKeepsItsHeader) {
    EXPECT_EQ(
        with_keys("[data]\nglobal_batch = 4\n\n[data.lengths]\nsamples = 3  # few\n", "deck",
                  {{"data.lengths.samples", "8"}, {"data.lengths.seed", "1"}, {"data.global_batch", "2"}}),
        "[data]\nglobal_batch = 2\n\n[data.lengths]\nsamples = 8  # few\nseed = 1\n");
    EXPECT_EQ(with_keys("[data]\nglobal_batch = 4\n\n[run]\nseed = 1\n", "deck",
                        {{"data.lengths.file", "\"a.csv\""}}),
              "[data]\nglobal_batch = 4\n[data.lengths]\nfile = \"a.csv\"\n\n[run]\nseed = 1\n");
}

TEST(DeckText, ReplacesValuesAndAddsLines) {
    EXPECT_EQ(with_keys(kDeck, "deck",
                        {{"run.name", "\"b\""},
                         {"section.vision.micro_batch", "4"},
                         {"section.vision.recompute", "\"layer\""},
                         {"section.vision.layout.dp", "2"},
                         {"section.vision.layout.tp", "3"},
                         {"section.language.layout.dp", "7"},
                         {"section.language.layout.stages", "[]"},
                         {"section.language.layout.pp", "2"},
                         {"section.language.lora.alpha", "16"},
                         {"edge.vision-language.tensor", "\"embeddings\""},
                         {"schedule.moves", "5"}}),
              R"(# Größe: a comment
[run]
name = "b"   # the name

[data]
global_batch = 16

[[section]]
name = "vision"
micro_batch = 4          # samples
window = 16
recompute = "layer"
[section.layout]
dp = 2
tp = 3

[[section]]
  name = "language"
  [section.layout]
  dp = 7                 # replicas
  stages = []                      # layers
  pp = 2

[section.lora]
rank = 8
alpha = 16

[[edge]]
from = "vision"
to = "language"
tensor = "embeddings"

[schedule]
moves = 5
)");
}

TEST(DeckText, RefusesTablesThatLinesCannotChange) {
    const auto message = [](const char* text, const char* key) -> std::string {
        try {
            with_keys(text, "deck.toml", {{key, "2"}});
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ExitCode::bad_deck);
            return error.what();
        }
        return "";
    };
    EXPECT_THAT(message("[[section]]\nname = \"v\"\nlayout = { dp = 1 }\n", "section.v.layout.tp"),
                testing::AllOf(testing::HasSubstr("deck.toml"), testing::HasSubstr("section.v.layout.tp"),
                               testing::HasSubstr("one key a line")));
    EXPECT_THAT(message("[run]\n", "section.v.micro_batch"), testing::HasSubstr("no such table"));
}

TEST(DeckText, WritesTextsInQuotes) {
    EXPECT_EQ(toml_text("2"), "\"2\"");
    EXPECT_EQ(toml_text("runs/a b"), "\"runs/a b\"");
    EXPECT_EQ(toml_text("say \"x\"\n"), "\"say \\\"x\\\"\\u000a\"");
}

/// Dotted keys belong to the table before the one that is added.
TEST(DeckText, LeavesDottedKeysInTheirTable) {
    EXPECT_EQ(with_keys("[[section]]\nname = \"v\"\nlora.rank = 8\n\n[run]\n", "deck",
                        {{"section.v.layout.dp", "2"}, {"section.v.window", "3"}}),
              "[[section]]\nname = \"v\"\nlora.rank = 8\nwindow = 3\n[section.layout]\ndp = 2\n\n[run]\n");
}

TEST(DeckText, IsFoundAgainInWhatARunStores) {
    const std::vector<KeyValue> some = {
        {"train.steps", "8"}, {"optimizer.betas", "[0.9, 0.96]"}, {"run.name", ""}};
    const std::vector<std::string> expected = {"train.steps=8", "optimizer.betas=[0.9, 0.96]", "run.name="};
    for (const std::string text : {"[run]\nname = \"a\"\n", "[run]\n\n\n", "# --set train.steps=5\n",
                                   "[run]\n\n# --set train.steps=5 is quick\n"}) {
        const StoredDeck with = parse_stored(stored_text(text, some)),
                         without = parse_stored(stored_text(text, {}));
        EXPECT_EQ(with.text, text);
        EXPECT_EQ(with.set, expected);
        EXPECT_EQ(without.text, text);
        EXPECT_EQ(without.set, std::vector<std::string>());
    }
    // Only the line break at the end of a text may be added.
    EXPECT_EQ(parse_stored(stored_text("[run]", some)).text, "[run]\n");
    EXPECT_EQ(parse_stored(stored_text("# --set train.steps=5", some)).set, expected);
    EXPECT_EQ(stored_text("[run]\n", {}), "[run]\n");
    EXPECT_EQ(parse_stored("").text, "");
}

}  // namespace
}  // namespace maestro::config
