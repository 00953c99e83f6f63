#include "tokens/detokenizer.hpp"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/error.hpp"

namespace maestro::tokens {

namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;  ///< larger ids are a damaged file's

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
    throw Error(ExitCode::bad_data, fmt::format("{}: {}", path, what));
}

/// The member of an object; null where there is none.
const Json& member(const Json& object, const char* key) {
    static const Json none;
    if (!object.is_object()) return none;
    const auto at = object.find(key);
    return at == object.end() ? none : *at;
}

std::string text_of(const Json& value) {
    return value.is_string() ? value.get<std::string>() : std::string();
}

std::string encode_utf8(std::int32_t c) {
    if (c < 0x80) return {static_cast<char>(c)};
    return {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};  // below 0x800
}

/// GPT-2's alphabet of characters that stand for bytes: those that can be printed stand for themselves, the
/// others in their order for the characters from U+0100 on.
std::array<std::string, 256> byte_characters() {
    std::array<std::string, 256> characters;
    std::int32_t next = 0x100;
    for (std::int32_t byte = 0; byte < 256; ++byte) {
        const bool itself = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
        characters[static_cast<std::size_t>(byte)] = encode_utf8(itself ? byte : next++);
    }
    return characters;
}

/// The bytes that a piece in this alphabet stands for; a piece with other characters stands for itself.
std::string bytes_of(const std::string& piece) {
    static const auto by_character = [] {
        std::map<std::string, char, std::less<>> bytes;
        const auto characters = byte_characters();
        for (std::size_t byte = 0; byte < characters.size(); ++byte)
            bytes[characters[byte]] = static_cast<char>(byte);
        return bytes;
    }();
    std::string bytes;
    for (std::size_t i = 0; i < piece.size();) {
        const std::size_t length = (piece[i] & 0x80) == 0 ? 1 : 2;
        const auto at = by_character.find(std::string_view(piece).substr(i, length));
        if (at == by_character.end()) return piece;
        bytes += at->second;
        i += length;
    }
    return bytes;
}

/// "<0xE4>" stands for one byte.
std::optional<char> single_byte(const std::string& piece) {
    if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return {};
    int value = 0;
    for (const char digit : piece.substr(3, 2)) {
        const auto at = std::string_view("0123456789ABCDEF").find(static_cast<char>(std::toupper(digit)));
        if (at == std::string_view::npos) return {};
        value = 16 * value + static_cast<int>(at);
    }
    return static_cast<char>(value);
}

std::string replace_all(std::string text, std::string_view old, std::string_view by) {
    for (std::size_t at = 0; (at = text.find(old, at)) != std::string::npos; at += by.size())
        text.replace(at, old.size(), by);
    return text;
}

constexpr std::string_view kSpacePiece = "\u2581";  ///< what stands for a space in such a vocabulary

/// Whether this is the decoder that Llama 2 has.
bool is_byte_fallback(const Json& decoder) {
    const Json& steps = member(decoder, "decoders");
    if (text_of(member(decoder, "type")) != "Sequence" || !steps.is_array() || steps.size() != 4)
        return false;
    const Json &replace = steps[0], &strip = steps[3];
    return text_of(member(replace, "type")) == "Replace" &&
           text_of(member(member(replace, "pattern"), "String")) == kSpacePiece &&
           text_of(member(replace, "content")) == " " &&
           text_of(member(steps[1], "type")) == "ByteFallback" &&
           text_of(member(steps[2], "type")) == "Fuse" && text_of(member(strip, "type")) == "Strip" &&
           text_of(member(strip, "content")) == " " && member(strip, "start") == 1 &&
           member(strip, "stop") == 0;
}

/// Everything but the merges of BPE, which only encoding needs and which take most of the memory.
Json parse_without_merges(std::string_view text) {
    constexpr int kInModel = 2;
    return Json::parse(
        text,
        [](int depth, Json::parse_event_t event, Json& parsed) {
            return !(event == Json::parse_event_t::key && depth == kInModel && parsed == "merges");
        },
        false);
}

}  // namespace

void Detokenizer::add(std::int64_t id, Piece piece) {
    piece.known = true;
    if (pieces_.size() <= static_cast<std::size_t>(id)) pieces_.resize(static_cast<std::size_t>(id) + 1);
    pieces_[static_cast<std::size_t>(id)] = std::move(piece);
}

Detokenizer Detokenizer::bytes() {
    Detokenizer detokenizer(Decoder::bytes);
    for (int byte = 0; byte < 256; ++byte)
        detokenizer.add(byte, {.text = std::string(1, static_cast<char>(byte))});
    for (const auto& [id, name] : {std::pair{256, "<picture>"}, {257, "<begin>"}, {258, "<end>"}})
        detokenizer.add(id, {.text = name, .special = true});
    return detokenizer;
}

Detokenizer Detokenizer::from_json(std::string_view text, const std::string& path) {
    const Json root = parse_without_merges(text);
    if (!root.is_object()) refuse(path, "not a JSON object");
    const Json &decoder = member(root, "decoder"), &vocabulary = member(member(root, "model"), "vocab");
    const std::string type = text_of(member(decoder, "type"));
    const bool fallback = is_byte_fallback(decoder);
    if (type != "ByteLevel" && !fallback)
        refuse(path,
               fmt::format("a decoder of type '{}' is not built; built are ByteLevel, and Llama 2's sequence "
                           "of Replace, ByteFallback, Fuse and Strip",
                           type.empty() ? "null" : type));
    if (!vocabulary.is_object()) refuse(path, "model.vocab is not an object of tokens and their ids");
    Detokenizer detokenizer(fallback ? Decoder::byte_fallback : Decoder::bytes);
    const auto add = [&](const std::string& token, const Json& id, bool special) {
        if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= static_cast<std::uint64_t>(kMostTokens))
            refuse(path, fmt::format("the token '{}' has the id {}", escape_controls(valid_utf8(token)),
                                     id.is_primitive() ? id.dump() : id.type_name()));
        Piece piece{.text = token, .special = special};
        if (!fallback) {
            piece.text = bytes_of(token);
        } else if (const auto byte = single_byte(token)) {
            piece.text = std::string(1, *byte);
            piece.byte = true;
        } else {
            piece.text = replace_all(token, kSpacePiece, " ");
        }
        detokenizer.add(id.get<std::int64_t>(), std::move(piece));
    };
    for (const auto& [token, id] : vocabulary.items()) add(token, id, false);
    if (const Json& added = member(root, "added_tokens"); added.is_array())
        for (const Json& token : added)
            add(text_of(member(token, "content")), member(token, "id"), member(token, "special") == true);
    return detokenizer;
}

std::string Detokenizer::text(std::span<const std::int32_t> ids) const {
    std::string text, pending;
    // Bytes that follow one another are characters, or none of them is valid (tokenizers' ByteFallback).
    const auto end_bytes = [&] {
        if (valid_utf8(pending) == pending)
            text += pending;
        else
            for (std::size_t i = 0; i < pending.size(); ++i) text += "\uFFFD";
        pending.clear();
    };
    for (const std::int32_t id : ids) {
        const bool known = knows(id);
        if (known && pieces_[static_cast<std::size_t>(id)].byte) {
            pending += pieces_[static_cast<std::size_t>(id)].text;
            continue;
        }
        end_bytes();
        text += known ? pieces_[static_cast<std::size_t>(id)].text : fmt::format("<id {}>", id);
    }
    end_bytes();
    if (decoder_ == Decoder::byte_fallback && text.starts_with(' ')) text.erase(0, 1);
    return valid_utf8(text);
}

bool Detokenizer::knows(std::int32_t id) const {
    return id >= 0 && static_cast<std::size_t>(id) < pieces_.size() &&
           pieces_[static_cast<std::size_t>(id)].known;
}

bool Detokenizer::is_special(std::int32_t id) const {
    return !knows(id) || pieces_[static_cast<std::size_t>(id)].special;
}

std::vector<std::int32_t> end_tokens(std::string_view json) {
    const Json root = Json::parse(json, nullptr, false);
    const Json* ids = &member(root, "eos_token_id");
    if (ids->is_null()) ids = &member(member(root, "text_config"), "eos_token_id");
    std::vector<std::int32_t> found;
    const auto add = [&](const Json& id) {
        if (id.is_number_unsigned() && id.get<std::uint64_t>() < static_cast<std::uint64_t>(kMostTokens))
            found.push_back(id.get<std::int32_t>());
    };
    if (ids->is_array())
        for (const Json& id : *ids) add(id);
    else
        add(*ids);
    return found;
}

}  // namespace maestro::tokens
