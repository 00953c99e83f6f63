#include "tokens/vocabulary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "base/error.hpp"
#include "tokens/detokenizer.hpp"

namespace maestro::tokens {

namespace {

constexpr std::uint64_t kMostIds = std::uint64_t{1} << 24;  ///< larger ids are a damaged file's
constexpr std::size_t kMostTokens = std::size_t{1} << 22;   ///< published tokenizers have up to 2^19
constexpr std::size_t kMostSpecial = 3;                     ///< that a difference names
constexpr int kMostLevels = 64;

/// A token for a message.
std::string shown(std::string_view text) {
    constexpr std::size_t kMost = 40;
    std::string cut(text.substr(0, kMost));
    if (text.size() > kMost) cut += "...";
    return "'" + escape_controls(valid_utf8(cut)) + "'";
}

}  // namespace

/// Takes the tokens from nlohmann::json's events, without a tree: a file of hundreds of megabytes costs no
/// more memory than its tokens.
class VocabularyReader {
public:
    VocabularyReader(std::vector<Vocabulary::Token>& tokens, const std::string& path)
        : tokens_(tokens), path_(path) {}

    bool null() { return true; }
    bool boolean(bool value) {
        if (in_added() && key(depth_) == "special") special_ = value;
        return true;
    }
    bool number_integer(std::int64_t value) { return id(kMostIds, std::to_string(value)); }
    bool number_unsigned(std::uint64_t value) { return id(value, std::to_string(value)); }
    bool number_float(double, const std::string& text) {
        if (in_unigram()) return true;  // its score
        return id(kMostIds, text);
    }
    bool string(std::string& value) {
        if (in_unigram() && !listed_) {
            listed_ = true;
            add(next_++, std::move(value), false);
        } else if (in_added() && key(depth_) == "content") {
            content_ = std::move(value);
        }
        return true;
    }
    bool binary(nlohmann::json::binary_t&) { return false; }
    bool start_object(std::size_t) { return begin(true); }
    bool start_array(std::size_t) { return begin(false); }
    bool end_object() {
        if (in_added()) {
            if (key(1) == "added_tokens_decoder") number_ = number_of(key(2));
            add(number_, std::move(content_), special_);
        }
        --depth_;
        return true;
    }
    bool end_array() {
        --depth_;
        return true;
    }
    bool key(std::string& name) {
        if (depth_ <= kLevels) level(depth_).key = std::move(name);
        return true;
    }
    bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
        refuse(fmt::format("not valid JSON at byte {}", position));
    }
    [[noreturn]] void refuse(const std::string& what) const {
        throw Error(ExitCode::bad_data, fmt::format("{}: {}", path_, what));
    }

private:
    static constexpr int kLevels = 4;
    struct Level {
        bool is_object = false;
        std::string key;  ///< the last one, of an object
    };
    Level& level(int depth) { return levels_[static_cast<std::size_t>(depth - 1)]; }
    const std::string& key(int depth) { return level(depth).key; }
    bool begin(bool is_object) {
        if (++depth_ > kMostLevels) refuse(fmt::format("its JSON has more than {} levels", kMostLevels));
        if (depth_ <= kLevels) level(depth_) = {is_object, {}};
        if (in_added()) number_ = kMostIds, content_.clear(), special_ = false;
        listed_ = false;
        return true;
    }
    /// Whether an object of added_tokens or of added_tokens_decoder is open, and nothing in it.
    bool in_added() {
        return depth_ == 3 && level(1).is_object && level(3).is_object &&
               (level(2).is_object ? key(1) == "added_tokens_decoder" : key(1) == "added_tokens");
    }
    bool in_vocabulary() {
        return depth_ >= 3 && level(1).is_object && level(2).is_object && key(1) == "model" &&
               key(2) == "vocab";
    }
    /// Unigram's vocabulary is a list of [token, score].
    bool in_unigram() { return depth_ == 4 && in_vocabulary() && !level(3).is_object && !level(4).is_object; }
    bool id(std::uint64_t value, const std::string& text) {
        if (depth_ == 3 && in_vocabulary() && level(3).is_object) {
            if (value >= kMostIds) refuse(fmt::format("the token {} has the id {}", shown(key(3)), text));
            add(value, key(3), false);
        } else if (in_added() && key(depth_) == "id") {
            number_ = value;
        }
        return true;
    }
    static std::uint64_t number_of(const std::string& text) {
        std::uint64_t number = kMostIds;
        const char* const end = text.data() + text.size();
        const auto [stop, error] = std::from_chars(text.data(), end, number);
        return error == std::errc() && stop == end ? number : kMostIds;
    }
    void add(std::uint64_t id, std::string text, bool special) {
        if (id >= kMostIds) refuse(fmt::format("the token {} has no id below {}", shown(text), kMostIds));
        if (tokens_.size() >= kMostTokens) refuse(fmt::format("more than {} tokens", kMostTokens));
        tokens_.push_back({static_cast<std::int32_t>(id), std::move(text), special});
    }

    std::vector<Vocabulary::Token>& tokens_;
    const std::string& path_;
    int depth_ = 0;
    std::array<Level, kLevels> levels_;
    std::uint64_t next_ = 0;  ///< id, in Unigram's list
    bool listed_ = false;     ///< the token of an element of that list has been met
    std::uint64_t number_ = kMostIds;
    std::string content_;
    bool special_ = false;
};

void Vocabulary::read(std::string_view json, const std::string& path) {
    VocabularyReader reader(tokens_, path);
    nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
    // A special token stands before the same one of the model's vocabulary, and only the first is kept.
    std::sort(tokens_.begin(), tokens_.end(), [](const Token& a, const Token& b) {
        return std::tie(a.id, a.text, b.special) < std::tie(b.id, b.text, a.special);
    });
    const auto end = std::unique(tokens_.begin(), tokens_.end(), [](const Token& a, const Token& b) {
        return a.id == b.id && a.text == b.text;
    });
    tokens_.erase(end, tokens_.end());
}

Vocabulary Vocabulary::from_json(std::string_view json, const std::string& path) {
    Vocabulary vocabulary;
    vocabulary.read(json, path);
    if (vocabulary.tokens_.empty())
        throw Error(ExitCode::bad_data, path + ": holds no tokens, so it is no tokenizer.json");
    return vocabulary;
}

void Vocabulary::add_config(std::string_view json, const std::string& path) {
    read(json, path);
}

std::string Vocabulary::difference(const Vocabulary& other, std::string_view here,
                                   std::string_view there) const {
    const auto [a, b] =
        std::mismatch(tokens_.begin(), tokens_.end(), other.tokens_.begin(), other.tokens_.end(),
                      [](const Token& x, const Token& y) { return x.id == y.id && x.text == y.text; });
    if (a == tokens_.end() && b == other.tokens_.end()) return {};
    const bool has_a = a != tokens_.end() && (b == other.tokens_.end() || a->id <= b->id),
               has_b = b != other.tokens_.end() && (a == tokens_.end() || b->id <= a->id);
    const auto token = [](bool has, auto at) { return has ? shown(at->text) : std::string("no token"); };
    std::string text =
        fmt::format("{} tokens in {} and {} in {}; the first id that differs is {}: {} and {}", size(), here,
                    other.size(), there, has_a ? a->id : b->id, token(has_a, a), token(has_b, b));
    std::map<std::string, std::array<std::int32_t, 2>> ids;  // of special tokens, -1: none
    const auto collect = [&](const Vocabulary& from, bool only_special, std::size_t side) {
        for (const Token& t : from.tokens_) {
            if (only_special && t.special) ids.try_emplace(t.text, std::array{-1, -1});
            if (const auto at = ids.find(t.text); at != ids.end()) at->second[side] = t.id;
        }
    };
    collect(*this, true, 0);
    collect(other, true, 1);
    collect(*this, false, 0);  // those that only the other has as special ones
    const auto number = [](std::int32_t id) { return id < 0 ? std::string("none") : std::to_string(id); };
    std::size_t named = 0;
    for (const auto& [name, pair] : ids) {
        if (pair[0] == pair[1] || named++ >= kMostSpecial) continue;
        text += fmt::format("{} {} is {} and {}", named == 1 ? "; special tokens:" : ",", shown(name),
                            number(pair[0]), number(pair[1]));
    }
    if (named > kMostSpecial) text += fmt::format(", and {} more", named - kMostSpecial);
    return text;
}

}  // namespace maestro::tokens
