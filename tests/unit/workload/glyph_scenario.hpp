// The scenario of inputs/vlm_glyphs.toml: two sections, `vision` (0) and `language` (1).
#pragma once

#include <string>
#include <vector>

#include "config/deck.hpp"
#include "workload/scenario.hpp"

namespace maestro::workload {

/// `settings`: KEY=VALUE of the deck.
inline Scenario glyph_scenario(const std::vector<std::string>& settings = {}) {
    const std::string path = std::string(MAESTRO_SOURCE_DIR) + "/inputs/vlm_glyphs.toml";
    return make_scenario(
        config::parse_deck(config::read_text(path), "deck", settings, config::Command::train));
}

}  // namespace maestro::workload
