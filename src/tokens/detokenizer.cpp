#include "tokens/detokenizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/error.hpp"

namespace maestro::tokens {

namespace {

using Json = nlohmann::json;

constexpr std::size_t kMostTokens = std::size_t{1} << 22;
constexpr std::size_t kShown = 100;  ///< bytes of a text of the file in an error
constexpr auto kMostId = static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max());

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

/// The scalars of the member "decoder" by their places: "decoders/0/type", with texts in quotes.
using DecoderKeys = std::map<std::string, std::string, std::less<>>;

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

/// Reads a tokenizer.json as a stream of events (SAX), without a tree: most of it are merges of BPE, which
/// only encoding needs, and what a hostile file has instead would take more memory than the text.
class Detokenizer::Reader {
public:
    Reader(Detokenizer& to, const std::string& path) : to_(to), path_(path) {}

    bool null() { return value(Json(nullptr)); }
    bool boolean(bool read) { return value(Json(read)); }
    bool number_integer(std::int64_t read) { return value(Json(read)); }
    bool number_unsigned(std::uint64_t read) { return value(Json(read)); }
    bool number_float(double read, const std::string&) { return value(Json(read)); }
    bool string(std::string& read) {
        if (in_decoder() && read.size() > kShown) read.resize(kShown);
        if (in_decoder() || in_vocabulary() || in_added_token()) return value(Json(std::move(read)));
        return next();
    }
    bool binary(Json::binary_t&) { return false; }
    bool key(std::string& name) {
        levels_.back().key = std::move(name);
        return true;
    }
    bool start_object(std::size_t) { return begin(true); }
    bool start_array(std::size_t) { return begin(false); }
    bool end_object() {
        if (in_added_token()) add(added_.content, added_.id, added_.special);
        return end();
    }
    bool end_array() { return end(); }
    bool parse_error(std::size_t, const std::string&, const Json::exception&) { return false; }

    const DecoderKeys& decoder() const { return decoder_; }
    bool has_vocabulary() const { return has_vocabulary_; }

private:
    struct Level {
        bool is_object;
        std::string key;  ///< of the member that is read
        std::size_t index = 0;
    };
    static constexpr std::size_t kMostLevels = 64, kMostDecoderKeys = 100;

    bool at(std::size_t level, std::string_view key) const {
        return levels_.size() > level && levels_[level].is_object && levels_[level].key == key;
    }
    bool in_decoder() const { return at(0, "decoder"); }
    bool in_vocabulary() const {
        return levels_.size() == 3 && at(0, "model") && at(1, "vocab") && levels_[2].is_object;
    }
    bool in_added_token() const {
        return levels_.size() == 3 && at(0, "added_tokens") && !levels_[1].is_object && levels_[2].is_object;
    }

    bool begin(bool is_object) {
        if (levels_.empty() && !is_object) return false;
        if (in_vocabulary()) add(levels_.back().key, Json(is_object ? "an object" : "a list"), false);
        levels_.push_back({.is_object = is_object, .key = {}});
        if (levels_.size() > kMostLevels)
            refuse(path_, fmt::format("its JSON has more than {} levels", kMostLevels));
        has_vocabulary_ |= in_vocabulary();
        if (in_added_token()) added_ = {};
        return true;
    }
    bool end() {
        levels_.pop_back();
        return next();
    }
    bool next() {
        if (!levels_.empty()) ++levels_.back().index;
        return true;
    }
    bool value(Json read) {
        if (levels_.empty()) return false;
        if (in_vocabulary()) {
            add(levels_.back().key, read, false);
        } else if (in_added_token()) {
            const std::string& key = levels_.back().key;
            if (key == "content" && read.is_string()) added_.content = read.get<std::string>();
            if (key == "id") added_.id = std::move(read);
            if (key == "special") added_.special = read == true;
        } else if (in_decoder()) {
            std::string place;
            for (std::size_t i = 1; i < levels_.size(); ++i)
                place += (i > 1 ? "/" : "") +
                         (levels_[i].is_object ? levels_[i].key : std::to_string(levels_[i].index));
            if (decoder_.size() == kMostDecoderKeys)
                refuse(path_, "its decoder has so many steps that it is not built");
            decoder_[place] = read.dump(-1, ' ', false, Json::error_handler_t::replace);
        }
        return next();
    }
    void add(std::string_view spelled, const Json& id, bool special) {
        if (!id.is_number_unsigned() || id.get<std::uint64_t>() > kMostId)
            refuse(path_, fmt::format("the token '{}' has the id {}", shown(spelled), id.dump()));
        if (to_.tokens_.size() == kMostTokens)
            refuse(path_, fmt::format("it has more than {} tokens", kMostTokens));
        to_.add(id.get<std::int32_t>(), spelled, special);
    }
    static std::string shown(std::string_view spelled) {
        return escape_controls(valid_utf8(spelled.substr(0, kShown))) +
               (spelled.size() > kShown ? "..." : "");
    }

    Detokenizer& to_;
    const std::string& path_;
    std::vector<Level> levels_;
    DecoderKeys decoder_;
    bool has_vocabulary_ = false;
    struct {
        std::string content;
        Json id;
        bool special = false;
    } added_;
};

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
    Reader reader(detokenizer, path);
    // The parser takes a byte 0 for the end of the text.
    if (text.find('\0') != std::string_view::npos || !Json::sax_parse(text.begin(), text.end(), &reader))
        refuse(path, "not a JSON object");
    if (is_byte_fallback(reader.decoder())) {
        detokenizer.decoder_ = Decoder::byte_fallback;
    } else if (const auto type = reader.decoder().find("type");
               type == reader.decoder().end() || type->second != "\"ByteLevel\"") {
        refuse(path, fmt::format("a decoder of type {} is not built; built are \"ByteLevel\", and Llama 2's "
                                 "sequence of Replace, ByteFallback, Fuse and Strip",
                                 type == reader.decoder().end() ? "null" : type->second));
    }
    if (!reader.has_vocabulary()) refuse(path, "model.vocab is not an object of tokens and their ids");
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
