// Decks of three and four sections with the models of inputs/vlm_glyphs.toml and a teacher.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "support/decks.hpp"

namespace maestro::plan {

/// Replaces `old_text`, which stands in the deck, by `new_text`.
inline void replace_in(std::string& deck, const std::string& old_text, const std::string& new_text) {
    const auto at = deck.find(old_text);
    ASSERT_NE(at, std::string::npos) << old_text;
    deck.replace(at, old_text.size(), new_text);
}

/// The sections: a frozen encoder and a frozen teacher before `language`, the student.
inline std::string vision_teacher_student() {
    std::string deck = testing_support::input("vlm_glyphs.toml");
    replace_in(deck, "[[section]]\nname = \"vision\"\nmodel = \"glyph-vision\"\nmode = \"train\"\n",
               R"([model.glyph-teacher]
kind = "language"
layers = 5
width = 128
heads = 4
kv_heads = 2
head_dim = 32
mlp = 192
vocabulary = 260

[[section]]
name = "vision"
model = "glyph-vision"
mode = "forward"
weights = "random"
)");
    replace_in(deck, "[[section]]\nname = \"language\"\n", R"([[section]]
name = "teacher"
model = "glyph-teacher"
mode = "forward"
weights = "random"
micro_batch = 4
[section.layout]
dp = 1

[[section]]
name = "language"
)");
    return deck + R"(
[[edge]]
from = "vision"
to = "teacher"
tensor = "embeddings"
[[edge]]
from = "teacher"
to = "language"
tensor = "hidden"
)";
}

/// The same with a trained encoder for the student: `frozen-vision` is the teacher's.
inline std::string two_visions() {
    std::string deck = vision_teacher_student();
    replace_in(deck, "mode = \"forward\"\nweights = \"random\"\nmicro_batch = 8",
               "mode = \"train\"\nmicro_batch = 8");
    replace_in(deck, "[[section]]\nname = \"teacher\"\n", R"([[section]]
name = "frozen-vision"
model = "glyph-vision"
mode = "forward"
weights = "random"
micro_batch = 8
[section.layout]
dp = 1

[[section]]
name = "teacher"
)");
    replace_in(deck, "from = \"vision\"\nto = \"teacher\"", "from = \"frozen-vision\"\nto = \"teacher\"");
    return deck;
}

}  // namespace maestro::plan
