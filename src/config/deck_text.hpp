// The text of a deck: changes it key by key, and leaves everything else as its author wrote it; and the form
// in which outputs store it.
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

/// A deck and the "KEY=VALUE" of its --set.
struct StoredDeck {
    std::string text;
    std::vector<std::string> set;
};
/// Returns both as one text, which outputs of a run store: the deck, and its overrides as comments behind it.
std::string stored_text(std::string text, const std::vector<KeyValue>& overrides);
/// Returns the deck and the overrides of a stored text.
StoredDeck parse_stored(std::string text);

}  // namespace maestro::config
