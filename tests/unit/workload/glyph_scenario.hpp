// The scenario of inputs/vlm_glyphs.toml: two sections, `vision` (0) and `language` (1).
#pragma once

#include <string>
#include <vector>

#include "config/deck.hpp"
#include "support/decks.hpp"
#include "workload/scenario.hpp"

namespace maestro::workload {

/// `settings`: KEY=VALUE of the deck.
inline Scenario glyph_scenario(const std::vector<std::string>& settings = {}) {
    return make_scenario(config::parse_deck(testing_support::input("vlm_glyphs.toml"), "deck", settings,
                                            config::Command::train));
}

}  // namespace maestro::workload
