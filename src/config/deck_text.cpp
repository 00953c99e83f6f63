#include "config/deck_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "base/error.hpp"
#include "config/table_reader.hpp"

namespace maestro::config {

namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& key, const std::string& what) {
    throw Error(ExitCode::bad_deck, fmt::format("{}: {}: {}", path, key, what), Scope::all_ranks);
}

toml::table parsed(const std::string& text, const std::string& path) {
    try {
        return toml::parse(text, path);
    } catch (const toml::parse_error& error) {
        const auto& at = error.source().begin;
        throw Error(ExitCode::bad_deck,
                    fmt::format("{}:{}:{}: {}", path, at.line, at.column, error.description()),
                    Scope::all_ranks);
    }
}

/// Where a key is: the table that has it, how its header is written, and its name in the table.
struct Home {
    const toml::table* table = nullptr;   ///< null: the text has no such table
    const toml::table* parent = nullptr;  ///< of a table within a section that the text lacks
    std::string header = {};              ///< of a table that is added
    std::string name = {};
};

/// Returns the table of `list` of which `name_of(table)` is `name`.
template <class NameOf>
const toml::table* find_table(const toml::table& root, const char* list, const std::string& name,
                              const NameOf& name_of) {
    const auto* tables = root.get_as<toml::array>(list);
    for (std::size_t i = 0; tables && i < tables->size(); ++i)
        if (const auto* table = (*tables)[i].as_table(); table && name_of(*table) == name) return table;
    return nullptr;
}

std::string text_at(const toml::table& table, const char* key) {
    return table[key].value_or(std::string());
}

Home home_of(const toml::table& root, const std::string& key) {
    const std::size_t first = key.find('.'), second = key.find('.', first + 1);
    const std::string kind = key.substr(0, first);
    if (kind == "section" || kind == "edge") {
        const std::string name = key.substr(first + 1, second - first - 1), rest = key.substr(second + 1);
        const toml::table* const table =
            kind == "section"
                ? find_table(root, "section", name, [](const auto& t) { return text_at(t, "name"); })
                : find_table(root, "edge", name,
                             [](const auto& t) { return text_at(t, "from") + "-" + text_at(t, "to"); });
        const std::size_t inner = rest.find('.');
        if (inner == std::string::npos || !table) return {.table = table, .name = rest};
        const std::string part = rest.substr(0, inner);
        return {.table = table->get_as<toml::table>(part),
                .parent = table,
                .header = fmt::format("[{}.{}]", kind, part),
                .name = rest.substr(inner + 1)};
    }
    if (kind == "model") {
        const std::string name = key.substr(first + 1, second - first - 1);
        const auto* models = root.get_as<toml::table>("model");
        return {.table = models ? models->get_as<toml::table>(name) : nullptr,
                .header = fmt::format("[model.{}]", name),
                .name = key.substr(second + 1)};
    }
    const auto* const table = root.get_as<toml::table>(kind);
    if (second != std::string::npos && table) {
        const std::string part = key.substr(first + 1, second - first - 1);
        return {.table = table->get_as<toml::table>(part),
                .parent = table,
                .header = fmt::format("[{}.{}]", kind, part),
                .name = key.substr(second + 1)};
    }
    return {.table = table, .header = fmt::format("[{}]", kind), .name = key.substr(first + 1)};
}

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines(1);
    for (const char c : text)
        if (c == '\n')
            lines.emplace_back();
        else
            lines.back() += c;
    return lines;
}

/// Returns the byte of a column, which counts characters of UTF-8 from 1.
std::size_t byte_of(const std::string& line, std::uint32_t column) {
    std::size_t byte = 0;
    for (std::uint32_t at = 1; at < column && byte < line.size(); ++at) do
            ++byte;
        while (byte < line.size() && (static_cast<unsigned char>(line[byte]) & 0xC0) == 0x80);
    return byte;
}

/// Whether the table is written as a header and lines.
bool has_header(const toml::table& table, const std::vector<std::string>& lines) {
    const std::uint32_t line = table.source().begin.line;
    if (table.is_inline() || line == 0 || line > lines.size()) return false;
    const std::string& text = lines[line - 1];
    const std::size_t begin = text.find_first_not_of(" \t");
    return begin != std::string::npos && text[begin] == '[';
}

/// Returns the number, from 1, of the last line of the table's keys, or of its header. Tables within it that
/// have headers do not count, dotted keys do.
std::uint32_t last_line_of(const toml::table& table, const std::vector<std::string>& lines) {
    std::uint32_t last = table.source().begin.line;
    for (const auto& [name, node] : table) {
        if (node.is_array() && node.as_array()->is_array_of_tables()) continue;
        const toml::table* const inner = node.as_table();
        if (inner && has_header(*inner, lines)) continue;
        last = std::max(last,
                        inner && !inner->is_inline() ? last_line_of(*inner, lines) : node.source().end.line);
    }
    return last;
}

/// Returns what stands before the first key of the line.
std::string indent_of(const std::string& line) {
    return line.substr(0, std::min(line.find_first_not_of(" \t"), line.size()));
}

std::string with_key(const std::string& text, const std::string& path, const std::string& key,
                     const std::string& value) {
    const toml::table root = parsed(text, path);
    const Home home = home_of(root, key);
    std::vector<std::string> lines = lines_of(text);
    const toml::node* const node = home.table ? home.table->get(home.name) : nullptr;
    const auto insert_after = [&](std::uint32_t line, std::vector<std::string> added) {
        lines.insert(lines.begin() + line, added.begin(), added.end());
    };
    if (node) {
        const toml::source_region& at = node->source();
        std::string& first = lines[at.begin.line - 1];
        const std::string before = first.substr(0, byte_of(first, at.begin.column));
        const std::string& last = lines[at.end.line - 1];
        first = before + value + last.substr(byte_of(last, at.end.column));
        lines.erase(lines.begin() + at.begin.line, lines.begin() + at.end.line);
    } else if (home.table) {
        if (!has_header(*home.table, lines))
            refuse(
                path, key,
                "its table is not written with a header and one key a line, so that the key cannot be added");
        const std::uint32_t line = last_line_of(*home.table, lines);
        insert_after(line, {fmt::format("{}{} = {}", indent_of(lines[line - 1]), home.name, value)});
    } else if (home.parent) {
        if (!has_header(*home.parent, lines)) refuse(path, key, "its table is not written with a header");
        const std::uint32_t line = last_line_of(*home.parent, lines);
        insert_after(line, {home.header, fmt::format("{} = {}", home.name, value)});
    } else {
        if (home.header.empty()) refuse(path, key, "there is no such table");
        while (!lines.empty() && lines.back().empty()) lines.pop_back();
        lines.insert(lines.end(), {"", home.header, fmt::format("{} = {}", home.name, value), ""});
    }
    return fmt::format("{}", fmt::join(lines, "\n"));
}

}  // namespace

std::string toml_text(const std::string& text) {
    std::string quoted = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') quoted += '\\';
        if (static_cast<unsigned char>(c) < ' ')
            quoted += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        else
            quoted += c;
    }
    return quoted + "\"";
}

std::string with_keys(std::string text, const std::string& path, const std::vector<KeyValue>& keys) {
    for (const auto& [key, value] : keys) text = with_key(text, path, key, value);
    return text;
}

namespace {

constexpr std::string_view kOverride = "# --set ";

/// Where the last line of the text begins, if it ends with a line break and is an override; otherwise npos.
std::size_t last_override_of(std::string_view text) {
    if (!text.ends_with('\n')) return std::string_view::npos;
    const std::size_t before = text.substr(0, text.size() - 1).rfind('\n');
    const std::size_t begin = before == std::string_view::npos ? 0 : before + 1;
    return text.substr(begin).starts_with(kOverride) ? begin : std::string_view::npos;
}

}  // namespace

std::string stored_text(std::string text, const std::vector<KeyValue>& overrides) {
    // An empty line keeps overrides apart from the author's own comments, should one of these begin so.
    if (!overrides.empty() && !text.ends_with('\n')) text += '\n';
    if (!overrides.empty() || last_override_of(text) != std::string::npos) text += '\n';
    for (const auto& [key, value] : overrides) text += fmt::format("{}{}={}\n", kOverride, key, value);
    return text;
}

StoredDeck parse_stored(std::string text) {
    StoredDeck stored;
    for (std::size_t at = last_override_of(text); at != std::string::npos; at = last_override_of(text)) {
        stored.set.push_back(text.substr(at + kOverride.size(), text.size() - 1 - at - kOverride.size()));
        text.resize(at);
    }
    std::reverse(stored.set.begin(), stored.set.end());
    if (text.ends_with("\n\n") && (!stored.set.empty() || last_override_of(std::string_view(text).substr(
                                                              0, text.size() - 1)) != std::string::npos))
        text.pop_back();
    stored.text = std::move(text);
    return stored;
}

}  // namespace maestro::config
