// JSON files of model folders, which anyone may have written.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace maestro::families {

/// Throws Error(bad_data, all_ranks) for a text that is no JSON object, or that has so many levels that
/// copying or printing it would take much stack.
nlohmann::json parse_object(std::string_view text, const std::string& path);

}  // namespace maestro::families
