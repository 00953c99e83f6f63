#include "tokens/detokenizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "tokens/tokenizer_reader.hpp"

namespace maestro::tokens {

namespace {

using Json = nlohmann::json;

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
std::string bytes_of(std::string_view piece) {
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
        const auto at = by_character.find(piece.substr(i, length));
        if (at == by_character.end()) return std::string(piece);
        bytes += at->second;
        i += length;
    }
    return bytes;
}

/// "<0xE4>" stands for one byte.
std::optional<char> single_byte(std::string_view piece) {
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

using DecoderKeys = decltype(TokenizerFile::decoder);

/// Whether this is the decoder that Llama 2 has.
bool is_byte_fallback(const DecoderKeys& decoder) {
    static const DecoderKeys llama = {{"type", "\"Sequence\""},
                                      {"decoders/0/type", "\"Replace\""},
                                      {"decoders/0/pattern/String", fmt::format("\"{}\"", kSpacePiece)},
                                      {"decoders/0/content", "\" \""},
                                      {"decoders/1/type", "\"ByteFallback\""},
                                      {"decoders/2/type", "\"Fuse\""},
                                      {"decoders/3/type", "\"Strip\""},
                                      {"decoders/3/content", "\" \""},
                                      {"decoders/3/start", "1"},
                                      {"decoders/3/stop", "0"}};
    const bool has_all = std::all_of(llama.begin(), llama.end(), [&](const auto& key) {
        const auto at = decoder.find(key.first);
        return at != decoder.end() && at->second == key.second;
    });
    return has_all && decoder.lower_bound("decoders/4") == decoder.lower_bound("decoders/:");
}

}  // namespace

void Detokenizer::add(std::int32_t id, std::string_view spelled, bool special) {
    tokens_.push_back({.id = id,
                       .begin = static_cast<std::uint32_t>(spelled_.size()),
                       .size = static_cast<std::uint32_t>(spelled.size()) & 0x7FFFFFFF,
                       .special = special});
    spelled_ += spelled;
}

void Detokenizer::sort() {
    std::stable_sort(tokens_.begin(), tokens_.end(),
                     [](const Token& a, const Token& b) { return a.id < b.id; });
    auto kept = tokens_.begin();
    for (auto token = tokens_.begin(); token != tokens_.end(); ++token)
        if (token + 1 == tokens_.end() || token[1].id != token->id) *kept++ = *token;
    tokens_.erase(kept, tokens_.end());
}

const Detokenizer::Token* Detokenizer::find(std::int32_t id) const {
    const auto at =
        std::lower_bound(tokens_.begin(), tokens_.end(), id,
                         [](const Token& token, std::int32_t wanted) { return token.id < wanted; });
    return at != tokens_.end() && at->id == id ? &*at : nullptr;
}

Detokenizer Detokenizer::bytes() {
    Detokenizer detokenizer(Decoder::bytes);
    const auto characters = byte_characters();
    for (std::int32_t byte = 0; byte < 256; ++byte)
        detokenizer.add(byte, characters[static_cast<std::size_t>(byte)], false);
    for (const auto& [id, name] : {std::pair{256, "<picture>"}, {257, "<begin>"}, {258, "<end>"}})
        detokenizer.add(id, name, true);
    return detokenizer;
}

Detokenizer Detokenizer::from_json(std::string_view text, const std::string& path) {
    Detokenizer detokenizer(Decoder::bytes);
    const TokenizerFile file =
        read_tokenizer(text, path, [&](std::int32_t id, std::string_view spelled, bool special) {
            detokenizer.add(id, spelled, special);
        });
    const auto type = file.decoder.find("type");
    if (is_byte_fallback(file.decoder))
        detokenizer.decoder_ = Decoder::byte_fallback;
    else if (type == file.decoder.end() || type->second != "\"ByteLevel\"")
        refuse(path,
               fmt::format("a decoder of type '{}' is not built; built are ByteLevel, and Llama 2's sequence "
                           "of Replace, ByteFallback, Fuse and Strip",
                           type == file.decoder.end() ? "null" : replace_all(type->second, "\"", "")));
    if (!file.has_vocabulary) refuse(path, "model.vocab is not an object of tokens and their ids");
    detokenizer.sort();
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
        const Token* const token = find(id);
        const std::string_view spelled = token ? spelling(*token) : std::string_view();
        const bool fallback = decoder_ == Decoder::byte_fallback;
        if (const auto byte = fallback ? single_byte(spelled) : std::nullopt) {
            pending += *byte;
            continue;
        }
        end_bytes();
        if (!token)
            text += fmt::format("<id {}>", id);
        else
            text += fallback ? replace_all(std::string(spelled), kSpacePiece, " ") : bytes_of(spelled);
    }
    end_bytes();
    if (decoder_ == Decoder::byte_fallback && text.starts_with(' ')) text.erase(0, 1);
    return valid_utf8(text);
}

bool Detokenizer::is_special(std::int32_t id) const {
    const Token* const token = find(id);
    return !token || token->special;
}

std::vector<std::int32_t> end_tokens(std::string_view json) {
    const Json root = Json::parse(json, nullptr, false);
    const Json* ids = &member(root, "eos_token_id");
    if (ids->is_null()) ids = &member(member(root, "text_config"), "eos_token_id");
    std::vector<std::int32_t> found;
    const auto add = [&](const Json& id) {
        if (id.is_number_unsigned() && id.get<std::uint64_t>() <= kMostId)
            found.push_back(id.get<std::int32_t>());
    };
    if (ids->is_array())
        for (const Json& id : *ids) add(id);
    else
        add(*ids);
    return found;
}

}  // namespace maestro::tokens
