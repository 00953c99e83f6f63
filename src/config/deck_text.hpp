// Changes the text of a deck key by key, and leaves everything else as its author wrote it.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace maestro::config {

/// A key by its full name ("section.vision.layout.dp", "data.global_batch", "edge.vision-language.tensor"),
/// and its value in TOML ("2", "\"layer\"", "[3, 3]").
using KeyValue = std::pair<std::string, std::string>;

/// Returns the text as a value in TOML: in quotes.
std::string toml_text(const std::string& text);

/// Returns `text` with these keys set: where the text has a key, its value is replaced, otherwise a line is
/// added to its table. Comments, order and blank lines stay. `path` is named in errors. Throws
/// Error(bad_deck, all_ranks) for a key whose table cannot be changed by lines, such as an inline table.
std::string with_keys(std::string text, const std::string& path, const std::vector<KeyValue>& keys);

}  // namespace maestro::config
