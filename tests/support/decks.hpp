// The files of inputs/, and how decks are refused.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "base/error.hpp"
#include "config/deck.hpp"

namespace maestro::testing_support {

/// The text of inputs/NAME.
inline std::string input(const std::string& name) {
    return config::read_text(fmt::format("{}/inputs/{}", MAESTRO_SOURCE_DIR, name));
}

/// The text of inputs/NAME with `new_text` for `old_text`, which it must have.
inline std::string edited(const std::string& old_text, const std::string& new_text,
                          const std::string& name = "vlm_glyphs.toml") {
    std::string text = input(name);
    const auto at = text.find(old_text);
    EXPECT_NE(at, std::string::npos) << old_text;
    return text.replace(at, old_text.size(), new_text);
}

/// The message of the error by which read() refuses a deck, or "no error"; code and scope are checked.
template <class Read>
std::string refusal_by(Read&& read) {
    try {
        read();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::bad_deck);
        EXPECT_EQ(error.scope(), Scope::all_ranks);
        return error.what();
    }
    return "no error";
}

}  // namespace maestro::testing_support
