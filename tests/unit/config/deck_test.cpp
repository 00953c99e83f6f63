#include "config/deck.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "base/error.hpp"
#include "config/command_line.hpp"
#include "support/decks.hpp"

namespace maestro::config {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::edited;
using testing_support::input;

Deck parse(const std::string& text, const std::vector<std::string>& overrides = {}) {
    return parse_deck(text, "deck.toml", overrides, Command::train);
}

std::string refusal(const std::string& text, const std::vector<std::string>& overrides = {}) {
    return testing_support::refusal_by([&] { parse(text, overrides); });
}

TEST(Deck, EveryInputIsGood) {
    for (const char* name : {"vlm_glyphs.toml", "glyphs_large.toml", "teacher.toml", "distill.toml",
                             "layouts.toml", "layouts_deep.toml", "layouts_moe.toml"})
        for (const Command command : {Command::train, Command::evaluate}) {
            const Deck deck = parse_deck(input(name), name, {}, command);
            EXPECT_GE(deck.optimizer.warmup_steps, 20) << name;
            EXPECT_LE(deck.optimizer.learning_rate, 3e-3) << name;
            EXPECT_EQ(deck.optimizer.clip, 1) << name;
        }
}

TEST(Deck, DecksForPlansHaveLengthsInsteadOfSamples) {
    for (const char* name : {"plan_vlm.toml", "plan_vlm_moe.toml", "plan_distill.toml"})
        for (const Command command : {Command::train, Command::plan, Command::simulate}) {
            const Deck deck = parse_deck(input(name), name, {}, command);
            EXPECT_TRUE(deck.data.lengths.requested()) << name;
            EXPECT_EQ(deck.data.lengths.drawn.samples, 20000) << name;
            EXPECT_EQ(deck.data.train, "") << name;
        }
}

/// The glyph deck with [data.lengths] of these lines and no sample file.
std::string with_lengths(const std::string& lines) {
    std::string text = edited("train = \"data/glyphs-train.h5\"", "");
    return text + "\n[data.lengths]\n" + lines;
}

TEST(Deck, LengthsAreAFileOrADistribution) {
    EXPECT_EQ(parse(with_lengths("file = \"lengths.csv\"\n")).data.lengths.file, "lengths.csv");
    const Deck deck =
        parse(with_lengths("samples = 99\ndistribution = \"lognormal\"\ntokens = 50\nspread = 1\n"),
              {"data.lengths.seed=5", "data.lengths.picture_share=0.5", "data.lengths.pictures=3",
               "data.lengths.picture_height=[8,64]", "data.lengths.picture_width=[32]",
               "data.lengths.picture_unit=8", "data.lengths.least_tokens=2"});
    const SampleDistribution& drawn = deck.data.lengths.drawn;
    EXPECT_EQ(drawn.samples, 99);
    EXPECT_EQ(drawn.seed, 5);
    EXPECT_EQ(drawn.shape, "lognormal");
    EXPECT_EQ(drawn.spread, 1);
    EXPECT_EQ(drawn.least_tokens, 2);
    EXPECT_EQ(drawn.most_tokens, deck.data.sequence_length) << "by default";
    EXPECT_EQ(drawn.picture_share, 0.5);
    EXPECT_THAT(drawn.picture_height, testing::ElementsAre(8, 64));
    EXPECT_EQ(deck.settings.at("data.lengths.picture_width"), "[32]");
    // By --set alone.
    const Deck set = parse(edited("train = \"data/glyphs-train.h5\"", ""),
                           {"data.lengths.samples=7", "data.lengths.tokens=9"});
    EXPECT_EQ(set.data.lengths.drawn.shape, "fixed");
    EXPECT_EQ(set.data.lengths.drawn.tokens, 9);
}

TEST(Deck, SamplesHaveOneSource) {
    const std::string none = edited("train = \"data/glyphs-train.h5\"", "");
    EXPECT_THAT(refusal(none), AllOf(HasSubstr("data.train: missing; it must be a sample file"),
                                     HasSubstr("[data.lengths]")));
    const std::string both = input("vlm_glyphs.toml") + "\n[data.lengths]\nfile = \"a.csv\"\n";
    EXPECT_THAT(refusal(both), HasSubstr("data.lengths: samples come from it or from data.train, which is "
                                         "data/glyphs-train.h5; remove one"));
    EXPECT_EQ(parse(both, {"data.train="}).data.lengths.file, "a.csv");
    // What reads no samples of data.train needs neither.
    EXPECT_NO_THROW(parse_deck(none, "deck.toml", {}, Command::evaluate));
    EXPECT_THAT(refusal(with_lengths("")), HasSubstr("data.lengths.samples: missing"));
    EXPECT_THAT(
        refusal(with_lengths("file = \"a.csv\"\nsamples = 4\n")),
        HasSubstr("data.lengths.samples: is a key of a distribution, but the lengths are those of a.csv"));
    EXPECT_THAT(refusal(edited("train = \"data/glyphs-train.h5\"", "lengths = 3")),
                HasSubstr("data.lengths: wrong type; allowed: a table"));
}

TEST(Deck, ChecksTheKeysOfDistributions) {
    const auto refused = [](const std::string& lines) {
        return refusal(with_lengths("samples = 100\n" + lines));
    };
    EXPECT_THAT(refused(""), HasSubstr("data.lengths.tokens: missing; required for a fixed distribution"));
    EXPECT_THAT(refused("distribution = \"normal\"\ntokens = 5\n"),
                HasSubstr("'normal' is not known; allowed: one of fixed, uniform, lognormal"));
    EXPECT_THAT(refused("tokens = 5\nspread = 1\n"),
                HasSubstr("data.lengths.spread: a fixed distribution does not have it"));
    EXPECT_THAT(refused("tokens = 5\nmost_tokens = 7\n"),
                HasSubstr("data.lengths.most_tokens: a fixed distribution does not have it"));
    EXPECT_THAT(refused("distribution = \"uniform\"\ntokens = 5\n"),
                HasSubstr("data.lengths.tokens: a uniform distribution does not have it"));
    EXPECT_THAT(refused("distribution = \"lognormal\"\ntokens = 5\n"),
                HasSubstr("data.lengths.spread: missing; required for a lognormal distribution"));
    EXPECT_THAT(refused("distribution = \"uniform\"\nleast_tokens = 9\nmost_tokens = 8\n"),
                HasSubstr("data.lengths.least_tokens: 9 is more than most_tokens, 8"));
    EXPECT_THAT(refused("tokens = 5\npicture_share = 0.5\npicture_height = [8]\n"),
                HasSubstr("data.lengths.picture_width: missing; required where samples have pictures"));
    const std::string pictures = "tokens = 5\npicture_share = 0.5\npicture_width = [64]\n";
    EXPECT_THAT(
        refused(pictures + "picture_height = [64, 8]\n"),
        HasSubstr("data.lengths.picture_height: [64, 8] is neither one number of pixels nor the least"));
    EXPECT_THAT(refused(pictures + "picture_height = [8, 16, 24]\n"), HasSubstr("[8, 16, 24] is neither"));
    EXPECT_THAT(refused(pictures + "picture_height = [33, 63]\npicture_unit = 32\n"),
                HasSubstr("data.lengths.picture_height: [33, 63] holds no multiple of picture_unit, 32"));
    EXPECT_THAT(refused(pictures + "picture_height = [5000]\n"), HasSubstr("5000 is out of range"));
    EXPECT_THAT(
        refusal(with_lengths("samples = 100000000\npictures = 11\npicture_height = [8]\n" + pictures)),
        HasSubstr("data.lengths.pictures: up to 11 for each of 100000000 samples are too many"));
    EXPECT_THAT(refused("tokens = 5\nlenght = 3\n"), HasSubstr("data.lengths.lenght: unknown key"));
}

TEST(Deck, ChecksTheKeysOfExperts) {
    const auto with = [](std::vector<std::string> settings) {
        for (std::string& setting : settings) setting = "model.language-12." + setting;
        return refusal(input("layouts_moe.toml"), settings);
    };
    EXPECT_THAT(with({"experts_per_token=13"}),
                HasSubstr("experts_per_token: 13; allowed: 1 to 12, the number of experts"));
    EXPECT_THAT(with({"dense_layers=3"}), HasSubstr("dense_layers: 3 of 3 layers leave none with experts; "
                                                    "allowed: 0 to 2"));
    EXPECT_THAT(with({"experts=0"}), HasSubstr("experts_per_token: 3 without experts"));
    EXPECT_THAT(with({"router=top"}), HasSubstr("allowed: one of softmax, sigmoid"));
    EXPECT_THAT(with({"family=llama"}), HasSubstr("a model of family llama has none"));
    EXPECT_THAT(with({"family=qwen3_moe", "balance=bias"}), HasSubstr("has no place for the bias"));
}

TEST(Deck, ErrorsNamePlaceKeyAndWhatIsAllowed) {
    EXPECT_THAT(refusal(edited("[train]", "[train]\nstepz = 3")),
                HasSubstr("train.stepz: unknown key; did you mean train.steps?"));
    EXPECT_THAT(refusal(edited("[train]", "[training]")), HasSubstr("did you mean train?"));
    EXPECT_THAT(refusal(edited("steps = 440", "steps = \"many\"")),
                HasSubstr("train.steps: wrong type; allowed: a whole number"));
    EXPECT_THAT(refusal(edited("steps = 440", "steps = 0")), HasSubstr("train.steps: 0 is out of range"));
    EXPECT_THAT(refusal(edited("steps = 440", "")), HasSubstr("train.steps: missing"));
    EXPECT_THAT(refusal(edited("device = \"cpu\"", "device = \"tpu\"")),
                HasSubstr("auto, cpu, cuda, emulated"));
    EXPECT_THAT(refusal(edited("betas = [0.9, 0.95]", "betas = [0.9]")), HasSubstr("two numbers"));
    EXPECT_THAT(refusal(edited("model = \"glyph-vision\"", "model = \"glyph\"")),
                HasSubstr("there is no [model.glyph]"));
    EXPECT_THAT(refusal(edited("steps = 440", "steps = 0")), HasSubstr("deck.toml:20:9: "));
}

/// A window of attention that is at least as long as a sequence is full attention.
TEST(Deck, RefusesSequencesThatAreLongerThanTheWindow) {
    const auto refused = [](const char* window) { return refusal(input("teacher.toml"), {window}); };
    EXPECT_THAT(refused("model.text-teacher.attention_window=511"),
                HasSubstr("512 is longer than the window of attention of model text-teacher"));
    EXPECT_NO_THROW(parse(input("teacher.toml"), {"model.text-teacher.attention_window=512"}));
}

TEST(Deck, AFolderThatIsMissingIsNamed) {
    std::string text =
        edited("layers = 4\nwidth = 128\nheads = 4\nkv_heads = 2\nhead_dim = 32\nmlp = 128\n", "");
    const auto at = text.find("model = \"glyph-language\"");
    text.insert(at, "weights = \"models/x\"\n");
    const auto parse_with = [&](const std::string& folder, const std::string& more) {
        return parse_deck(
            text + more, "deck.toml", {}, Command::train, Times::model, {},
            [&](const std::string& weights, const std::string&) {
                using Keys = std::map<std::string, std::string>;
                const Keys keys{{"layers", "4"}, {"width", "128"}, {"heads", "4"}, {"mlp", "320"}};
                return weights == folder ? std::optional<Keys>(keys) : std::nullopt;
            });
    };
    try {
        parse_with("models/y", "");
        FAIL() << "no error";
    } catch (const Error& error) {
        EXPECT_THAT(error.what(),
                    HasSubstr("section.language.weights: there is no models/x/config.json, from which "
                              "[model.glyph-language] could take its missing keys"));
        EXPECT_THAT(error.what(), HasSubstr("model.glyph-language.layers: missing"));
    }
    // The folder of one section gives the keys of another that has the same model and starts from a run.
    const std::string frozen =
        "[[section]]\nname = \"copy\"\nmodel = \"glyph-language\"\nmode = \"forward\"\nweights = "
        "\"runs/a\"\n";
    EXPECT_EQ(parse_with("models/x", frozen).models.at("glyph-language").layers, 4);
}

TEST(Deck, AllErrorsComeAtOnce) {
    std::string text = edited("steps = 440", "steps = 0");
    text.replace(text.find("precision = \"fp32\""), 18, "precision = \"fp99\"");
    const std::string message = refusal(text, {"run.sed=1"});
    EXPECT_THAT(message, HasSubstr("train.steps"));
    EXPECT_THAT(message, HasSubstr("run.precision"));
    EXPECT_THAT(message, HasSubstr("--set run.sed: unknown key; did you mean run.seed?"));
}

TEST(Deck, SectionsAreTunedByTheirKeys) {
    const std::string text =
        edited("mode = \"train\"", "freeze = [\"patch\", \"layers.0-1\"]\nlearning_rate = 0");
    const Deck deck =
        parse(text, {"section.language.freeze=[\"embedding\"]", "section.language.weight_decay=0.5",
                     "section.language.recompute=layer", "section.language.recompute_layers=3"});
    const Section &vision = deck.sections[0], &language = deck.sections[1];
    EXPECT_THAT(vision.freeze, testing::ElementsAre("patch", "layers.0-1"));
    EXPECT_THAT(language.freeze, testing::ElementsAre("embedding"));
    EXPECT_EQ(vision.learning_rate, 0.0);
    EXPECT_EQ(language.learning_rate, std::nullopt);
    EXPECT_EQ(language.weight_decay, 0.5);
    EXPECT_EQ(deck.recompute_of(vision), "none");
    EXPECT_EQ(deck.recompute_of(language), "layer");
    EXPECT_EQ(deck.settings.at("section.vision.freeze"), "[\"patch\", \"layers.0-1\"]");
    EXPECT_EQ(deck.settings.at("section.language.learning_rate"), "not set");
    const auto refused = [&](const char* change) { return refusal(input("vlm_glyphs.toml"), {change}); };
    EXPECT_THAT(refused("section.vision.freeze=embedding"),
                HasSubstr("a list of texts, such as [\"embedding\""));
    EXPECT_THAT(refused("section.vision.freeze=[1]"), HasSubstr("wrong type; allowed: a list of texts"));
    EXPECT_THAT(refused("section.vision.learning_rate=2"),
                HasSubstr("2 is out of range; allowed: a number from 0"));
    EXPECT_THAT(refused("section.vision.learning_rate=x"), HasSubstr("'x' does not fit"));
    EXPECT_THAT(refused("section.vision.recompute=some"), HasSubstr("one of none, cheap, layer"));
    EXPECT_THAT(refused("section.vision.recompute_layers=2"), HasSubstr("because recompute is \"none\""));
    EXPECT_THAT(refusal(text, {"section.vision.recompute=cheap", "section.vision.recompute_layers=4"}),
                HasSubstr("section.vision.recompute_layers: 4 is more than the 3 layers"));
    EXPECT_THAT(refusal(text, {"section.vision.mode=forward", "section.vision.weights=random"}),
                AllOf(HasSubstr("section.vision.freeze: the whole section is frozen"),
                      HasSubstr("section.vision.learning_rate: the whole")));
}

TEST(Deck, HostileTextIsRefused) {
    EXPECT_THAT(refusal("[("), HasSubstr("deck.toml:1:"));
    EXPECT_THAT(refusal(""), HasSubstr("missing"));
    EXPECT_THAT(refusal("a = " + std::string(100000, '[')), HasSubstr("deck.toml:1:"));
    EXPECT_THAT(refusal("section = 3\nedge = [1]\nmodel = 4\n"), HasSubstr("[[section]]"));
    EXPECT_NE(refusal(std::string("\xff\xfe\0", 3)), "no error");
}

TEST(Deck, TheFuzzersCorpusIsParsedOrRefused) {
    int files = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator(std::string(MAESTRO_SOURCE_DIR) + "/tests/fuzz/corpus/deck")) {
        ++files;
        try {
            parse(read_text(entry.path().string()));
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ExitCode::bad_deck) << entry.path();
        }
    }
    EXPECT_GE(files, 8);
}

TEST(Deck, OverridesAreTypedByTheSchema) {
    const std::string text = input("vlm_glyphs.toml");
    const Deck deck =
        parse(text, {"train.steps=7", "train.steps=8", "optimizer.clip=0.5", "metrics.timeline_every=0",
                     "model.glyph-language.tie_embeddings=false", "run.output=a b", "section.vision.window=9",
                     "model.glyph-language.layers=2", "section.language.layout.dp=1",
                     "edge.vision-language.tensor=embeddings"});
    EXPECT_EQ(deck.train.steps, 8);
    EXPECT_EQ(deck.optimizer.clip, 0.5);
    EXPECT_EQ(deck.metrics.timeline_every, 0);
    EXPECT_FALSE(deck.models.at("glyph-language").tie_embeddings);
    EXPECT_EQ(deck.run.output, "a b");
    EXPECT_EQ(parse(text, {"optimizer.betas=[0.8, 0.9]"}).optimizer.betas, (std::array{0.8, 0.9}));
    for (const char* value : {"0.8", "[0.8]", "[0.8, 1]", "[0.8, x]", "[0.8, 0.9", ""})
        EXPECT_THAT(refusal(text, {std::string("optimizer.betas=") + value}),
                    AllOf(HasSubstr("--set optimizer.betas"), HasSubstr("two numbers")))
            << value;
    EXPECT_EQ(deck.sections[0].window, 9);
    EXPECT_EQ(deck.models.at("glyph-language").layers, 2);
    EXPECT_EQ(deck.sections[1].layout.dp, 1);
    EXPECT_THAT(deck.text, HasSubstr("# --set train.steps=8"));
    EXPECT_THAT(refusal(text, {"train.steps=3.5"}), HasSubstr("--set train.steps: '3.5' does not fit"));
    EXPECT_THAT(refusal(text, {"run.output="}), HasSubstr("--set run.output: is empty"));
    EXPECT_THAT(refusal(text, {"run.name=a\nb"}), HasSubstr("--set run.name: the value has a line break"));
    EXPECT_THAT(refusal(text, {"train.steps"}), HasSubstr("not of the form KEY=VALUE"));
    EXPECT_THAT(refusal(text, {"model.glyph-language.tie_embeddings=yes"}), HasSubstr("true or false"));
}

TEST(Precision, Fp64NeedsTheCpuAndSavesNothing) {
    const std::string text = edited("precision = \"fp32\"", "precision = \"fp64\"");
    EXPECT_THAT(refusal(text, {"run.device=auto"}),
                AllOf(HasSubstr("run.device: \"auto\", but run.precision is fp64"),
                      HasSubstr("checkpoint.every: 220, but"), HasSubstr("set it to 0")));
    const Deck deck = parse(text, {"run.device=cpu", "checkpoint.every=0"});
    EXPECT_EQ(deck.run.precision, "fp64");
    EXPECT_THAT(deck.saves_nothing(), HasSubstr("fp64"));
    EXPECT_THAT(refusal(text, {"run.device=cpu", "checkpoint.every=0", "run.matmul_precision=tf32"}),
                HasSubstr("tf32 applies to fp32, but run.precision is fp64"));
}

TEST(Checkpoints, LeftOutIsNotZero) {
    const std::string left_out = edited("every = 220", "# every");
    const Deck at_end = parse(left_out), never = parse(left_out, {"checkpoint.every=0"}),
               often = parse(left_out, {"checkpoint.every=5"});
    EXPECT_TRUE(at_end.saves_at_end() && often.saves_at_end());
    EXPECT_FALSE(never.saves_at_end());
    EXPECT_THAT((std::array{at_end.save_interval(), never.save_interval(), often.save_interval()}),
                testing::ElementsAre(0, 0, 5));
    EXPECT_EQ(at_end.settings.at("checkpoint.every"), "not set");
    EXPECT_EQ(never.settings.at("checkpoint.every"), "0");
    EXPECT_EQ(never.saves_nothing(), "");  // an early stop saves
    const Deck emulated =
        parse(left_out, {"run.device=emulated", "emulated.cluster=c", "checkpoint.every=5"});
    EXPECT_FALSE(emulated.saves_at_end());
    EXPECT_EQ(emulated.save_interval(), 0);
    EXPECT_THAT(emulated.saves_nothing(), HasSubstr("emulated"));
    EXPECT_THAT(refusal(left_out, {"checkpoint.every=1.5"}), HasSubstr("a whole number from 0"));
}

std::string with_lora(const std::string& table) {
    std::string text = input("vlm_glyphs.toml");
    const auto at = text.find("[[edge]]");
    return text.insert(at, "[section.lora]\n" + table + "\n");  // of the section above: language
}

TEST(Lora, HasAllTargetsAndTheScaleOneUnlessTheDeckSaysOtherwise) {
    const Deck deck = parse(with_lora("rank = 8"), {"section.language.weights=random"});
    const Lora& lora = deck.sections.back().lora.adapters;
    EXPECT_TRUE(lora.enabled());
    EXPECT_EQ(lora.scale(), 1);
    EXPECT_THAT(lora.targets, testing::ElementsAre("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj",
                                                   "up_proj", "down_proj"));
    EXPECT_FALSE(deck.sections.front().lora.adapters.enabled());
    EXPECT_EQ(lora_of(deck.settings, "language"), lora);
    EXPECT_EQ(lora_of(deck.settings, "vision"), Lora{});
    EXPECT_EQ(lora_of({}, "language"), Lora{});  // of a checkpoint from before there were adapters
}

TEST(Lora, IsRefusedWhereItCannotBeTrained) {
    const std::vector<std::string> random = {"section.language.weights=random"};
    EXPECT_THAT(refusal(with_lora("rank = 0"), random),
                HasSubstr("section.language.lora.rank: 0 is out of range; allowed: a whole number from 1"));
    EXPECT_THAT(refusal(with_lora("rank = 8\ntargets = [\"q_proj\", \"qkv\"]"), random),
                HasSubstr("section.language.lora.targets: 'qkv' is not known; allowed: a list of q_proj, "));
    EXPECT_THAT(refusal(with_lora("rank = 8\ntargets = [\"attn.qkv\"]"), random),
                HasSubstr("section.language.lora.targets: this model has no 'attn.qkv'; allowed: a list of "
                          "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj"));
    EXPECT_THAT(refusal(with_lora("rank = 8\ntargets = \"q_proj\""), random),
                HasSubstr("section.language.lora.targets: wrong type; allowed: a list of q_proj, "));
    EXPECT_THAT(refusal(with_lora("alpha = 8"), random), HasSubstr("section.language.lora.rank: missing"));
    EXPECT_THAT(refusal(with_lora("rank = 8")), HasSubstr("section.language.weights: a section with LoRA"));
    EXPECT_THAT(
        refusal(with_lora("rank = 8"), {"section.language.weights=random", "section.language.mode=forward"}),
        HasSubstr("section.language.lora.rank: a frozen section trains no adapters"));
}

TEST(Lora, IsTheSameInARunThatIsResumed) {
    const std::vector<std::string> random = {"section.language.weights=random"};
    const Deck before = parse(with_lora("rank = 8\ntargets = [\"v_proj\", \"q_proj\"]"), random);
    const auto conflicts = [&](const std::string& table) {
        return resume_conflicts(parse(with_lora(table), random), before.settings, before.defaults);
    };
    EXPECT_THAT(conflicts("rank = 8\ntargets = [\"q_proj\", \"v_proj\"]\nweights = \"folder\""),
                testing::IsEmpty());
    EXPECT_THAT(conflicts("rank = 4\nalpha = 8\ntargets = [\"q_proj\", \"v_proj\"]"),
                testing::ElementsAre("section.language.lora.rank: 8 in the checkpoint, 4 now"));
    EXPECT_THAT(
        conflicts("rank = 8\ntargets = [\"q_proj\"]"),
        testing::ElementsAre("section.language.lora.targets: [\"q_proj\", \"v_proj\"] in the checkpoint, "
                             "[\"q_proj\"] now"));
    EXPECT_THAT(resume_conflicts(before, parse(input("vlm_glyphs.toml")).settings),
                testing::Contains(HasSubstr("section.language.lora.rank: 0 in the checkpoint, 8 now")));
}

TEST(Deck, TheSearchHasAnEnd) {
    const std::string text = input("vlm_glyphs.toml");
    EXPECT_EQ(parse(text, {"schedule.moves=1000000"}).schedule.moves, 1000000);
    EXPECT_THAT(
        refusal(text, {"schedule.moves=1000001"}),
        HasSubstr(
            "--set schedule.moves: 1000001 is out of range; allowed: a whole number from 0 to 1000000"));
}

CommandLine command_line(std::vector<const char*> words) {
    words.insert(words.begin(), "maestro");
    return parse_command_line(static_cast<int>(words.size()), words.data());
}

/// The rows of docs/deck.md by the TOML table that their heading names: "run", "model", ...
std::map<std::string, std::string> documented_rows() {
    std::ifstream file(std::string(MAESTRO_SOURCE_DIR) + "/docs/deck.md");
    std::map<std::string, std::string> rows;
    std::string heading;
    for (std::string line; std::getline(file, line);) {
        if (line.starts_with("## ")) heading = line;
        if (!line.starts_with("| `")) continue;
        for (const char* table : {"run", "data", "train", "optimizer", "checkpoint", "metrics", "emulated",
                                  "schedule", "model", "section", "edge"})
            if (heading.find(std::string("[") + table) != std::string::npos)
                rows[table] += line.substr(0, line.find(" | ")) + "\n";
    }
    return rows;
}

TEST(Documentation, DescribesEveryKey) {
    const auto rows = documented_rows();
    for (const char* name : {"vlm_glyphs.toml", "distill.toml"})
        for (const auto& [key, value] : parse(input(name)).settings) {
            const std::string table = key.substr(0, key.find('.'));
            ASSERT_TRUE(rows.contains(table)) << key << ": docs/deck.md has no rows for its table";
            std::string inner = key.substr(table.size() + 1);
            if (table == "model" || table == "section" || table == "edge")  // their keys contain a name
                inner = inner.substr(inner.find('.') + 1);
            const bool there = rows.at(table).find("`" + inner + "`") != std::string::npos ||
                               rows.at(table).find("`" + table + "." + inner + "`") != std::string::npos;
            EXPECT_TRUE(there) << key << " has no row in docs/deck.md";
        }
}

TEST(Resume, AcceptsWhatLeavesTheResultAlone) {
    const Deck before = parse(input("vlm_glyphs.toml"));
    const Deck after = parse(
        input("vlm_glyphs.toml"),
        {"train.steps=9999", "run.output=elsewhere", "checkpoint.every=7", "checkpoint.keep=9",
         "section.language.layout.dp=1", "section.vision.window=3", "section.language.colocate_with=vision",
         "section.vision.layout.first_rank=3", "schedule.policy=fifo", "section.vision.recompute=cheap",
         "section.vision.recompute_layers=2"});
    EXPECT_THAT(resume_conflicts(after, before.settings), testing::IsEmpty());
    EXPECT_EQ(before.settings.at("optimizer.learning_rate"), "0.002");
    EXPECT_EQ(before.settings.at("model.glyph-vision.kind"), "vision");
}

TEST(Resume, NamesEveryKeyThatChangesTheResult) {
    const Deck before = parse(input("vlm_glyphs.toml"));
    const std::vector<std::string> changes = {"run.seed=7",
                                              "run.precision=bf16",
                                              "data.global_batch=48",
                                              "optimizer.clip=2",
                                              "optimizer.decay_steps=100000",
                                              "optimizer.learning_rate=0.001",
                                              "optimizer.eps=1e-6",
                                              "section.vision.freeze=[\"patch\"]",
                                              "section.vision.learning_rate=0.1",
                                              "section.vision.weight_decay=0"};
    for (const std::string& change : changes) {
        const auto conflicts = resume_conflicts(parse(input("vlm_glyphs.toml"), {change}), before.settings);
        ASSERT_EQ(conflicts.size(), 1u) << change;
        EXPECT_THAT(conflicts.front(), testing::StartsWith(change.substr(0, change.find('=')) + ": "));
        EXPECT_THAT(conflicts.front(), HasSubstr(before.settings.at(change.substr(0, change.find('=')))));
    }
    const auto betas =
        resume_conflicts(parse(edited("betas = [0.9, 0.95]", "betas = [0.9, 0.99]")), before.settings);
    EXPECT_THAT(betas,
                testing::ElementsAre("optimizer.betas: [0.9, 0.95] in the checkpoint, [0.9, 0.99] now"));
    EXPECT_THAT(resume_conflicts(parse(input("distill.toml")), before.settings),
                testing::SizeIs(testing::Gt(10)));
}

TEST(Resume, AKeyThatOneSideDoesNotKnowIsItsDefaultThere) {
    const Deck deck = parse(input("vlm_glyphs.toml"));
    auto stored = deck.settings;
    ASSERT_EQ(stored.erase("optimizer.eps"), 1u);
    ASSERT_EQ(stored.erase("model.glyph-language.rope_theta"), 1u);
    EXPECT_THAT(resume_conflicts(deck, stored), testing::IsEmpty());
    EXPECT_THAT(resume_conflicts(parse(input("vlm_glyphs.toml"), {"optimizer.eps=1e-6"}), stored),
                testing::ElementsAre("optimizer.eps: 1e-06 now, not there in the checkpoint"));
    stored = deck.settings;
    stored["optimizer.momentum"] = "0.9";
    EXPECT_THAT(resume_conflicts(deck, stored, {{"optimizer.momentum", "0.9"}}), testing::IsEmpty());
    EXPECT_THAT(resume_conflicts(deck, stored, {{"optimizer.momentum", "0.5"}}), testing::SizeIs(1));
    EXPECT_THAT(resume_conflicts(deck, stored), testing::SizeIs(1));
    stored = deck.settings;
    stored.erase("model.glyph-vision.width");
    EXPECT_THAT(resume_conflicts(deck, stored), testing::SizeIs(1)) << "a key without a default";
}

TEST(CommandLine, IsReadOrRefused) {
    const CommandLine line = command_line(
        {"train", "deck.toml", "--set", "a=1", "--set", "b=2", "--resume", "auto", "--max-hours", "1.5"});
    EXPECT_EQ(line.deck, "deck.toml");
    EXPECT_THAT(line.set, testing::ElementsAre("a=1", "b=2"));
    EXPECT_EQ(line.resume, "auto");
    EXPECT_EQ(line.max_hours, 1.5);
    EXPECT_TRUE(command_line({"evaluate", "d", "--checkpoint", "c", "--exchange-images"}).exchange_images);
    EXPECT_THAT(command_line({"--help"}).answer, HasSubstr("maestro train"));
    EXPECT_THAT(command_line({"train", "--help"}).answer, HasSubstr("--dry-run"));
    const auto code = [](std::vector<const char*> words) {
        try {
            command_line(std::move(words));
        } catch (const Error& error) {
            return error.code();
        }
        return ExitCode::done;
    };
    EXPECT_EQ(code({}), ExitCode::usage);
    EXPECT_EQ(code({"teach"}), ExitCode::usage);
    EXPECT_EQ(code({"train"}), ExitCode::usage);
    EXPECT_EQ(code({"train", "a", "b"}), ExitCode::usage);
    EXPECT_EQ(code({"train", "a", "--what"}), ExitCode::usage);
    // A dry run for another machine.
    for (const auto& [text, bytes] : {std::pair{"80GiB", 80.0 * (1 << 30)}, std::pair{"1.5 TB", 1.5e12},
                                      std::pair{"80e9", 80e9}, std::pair{"4096", 4096.0}})
        EXPECT_EQ(command_line({"train", "a", "--dry-run", "--memory", text, "--json"}).memory, bytes);
    for (const char* text : {"", "80 apples", "-1", "0", "nan", "inf", "1e30", "80GiB.", "0x"})
        EXPECT_EQ(code({"train", "a", "--dry-run", "--memory", text}), ExitCode::usage) << text;
    EXPECT_EQ(code({"train", "a", "--dry-run", "--memory", "1GB", "--cluster", "c"}), ExitCode::usage);
    EXPECT_EQ(code({"train", "a", "--json"}), ExitCode::usage);
    EXPECT_EQ(code({"train", "a", "--memory", "1GB"}), ExitCode::usage);
    EXPECT_EQ(code({"train", "a", "--cluster", "c"}), ExitCode::usage);
    EXPECT_EQ(code({"evaluate", "a"}), ExitCode::usage);
    EXPECT_EQ(code({"plan", "a"}), ExitCode::usage);
    for (const char* ranks : {"", "0", "8-", "-8", "9-8", "8x", "1e3", "2000000"})
        EXPECT_EQ(code({"plan", "a", "--cluster", "c", "--ranks", ranks}), ExitCode::usage) << ranks;
    const CommandLine range = command_line({"plan", "a", "--cluster", "c", "--ranks", "8-64", "--fix", "b"});
    EXPECT_EQ(std::pair(range.least_ranks, range.ranks), std::pair(8, 64));
    EXPECT_EQ(range.fixed, std::vector<std::string>{"b"});
    EXPECT_EQ(command_line({"plan", "a", "--cluster", "c", "--ranks", "7"}).least_ranks, 7);
    EXPECT_EQ(code({"simulate", "a"}), ExitCode::usage);
    EXPECT_EQ(code({"simulate", "a", "--costs", "c", "--cluster", "c"}), ExitCode::usage);
    EXPECT_EQ(code({"simulate", "a", "--costs", "c", "--step", "0"}), ExitCode::usage);
    EXPECT_EQ(command_line({"simulate", "a", "--cluster", "c", "--step", "7"}).step, 7);
}

}  // namespace
}  // namespace maestro::config
