// Text that a terminal can show.
#include <fmt/format.h>

#include <algorithm>

#include "tokens/detokenizer.hpp"

namespace maestro::tokens {

namespace {

/// The beginning of a text: a character, or bytes that are none.
struct Unit {
    std::size_t bytes = 1;
    std::int32_t character = -1;  ///< -1: not valid; the bytes are then the longest part of a character
};

/// `text` is not empty. The ranges of second bytes are those of the Unicode standard, table 3-7.
Unit next_unit(std::string_view text) {
    const auto byte = [&](std::size_t i) { return static_cast<std::int32_t>(text[i] & 0xFF); };
    const std::int32_t first = byte(0);
    if (first < 0x80) return {1, first};
    const std::size_t length = first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
    if (length == 0) return {};
    std::int32_t low = 0x80, high = 0xBF, character = first & (0x7F >> length);
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;  // no halves of surrogate pairs
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
    for (std::size_t i = 1; i < length; ++i) {
        if (i >= text.size() || byte(i) < low || byte(i) > high) return {i, -1};
        character = character << 6 | (byte(i) & 0x3F);
        low = 0x80;
        high = 0xBF;
    }
    return {length, character};
}

/// Controls, and what changes the direction of text or is invisible, but for the joiners of scripts and
/// emoji.
bool is_escaped(std::int32_t c) {
    return (c < 0x20 && c != '\n') || (c >= 0x7F && c < 0xA0) ||
           (c >= 0x200B && c <= 0x200F && c != 0x200C && c != 0x200D) || (c >= 0x2028 && c <= 0x202E) ||
           (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF;
}

}  // namespace

std::string valid_utf8(std::string_view bytes) {
    std::string text;
    while (!bytes.empty()) {
        const Unit unit = next_unit(bytes);
        text += unit.character < 0 ? "\uFFFD" : bytes.substr(0, unit.bytes);
        bytes.remove_prefix(unit.bytes);
    }
    return text;
}

std::string escape_controls(std::string_view text) {
    std::string escaped;
    while (!text.empty()) {
        const Unit unit = next_unit(text);
        if (!is_escaped(unit.character))
            escaped += text.substr(0, unit.bytes);
        else if (unit.character < 0x80)
            escaped += unit.character == '\t'   ? std::string("\\t")
                       : unit.character == '\r' ? std::string("\\r")
                                                : fmt::format("\\x{:02x}", unit.character);
        else
            escaped += fmt::format("\\u{{{:04x}}}", unit.character);
        text.remove_prefix(unit.bytes);
    }
    return escaped;
}

}  // namespace maestro::tokens
