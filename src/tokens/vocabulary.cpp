#include "tokens/vocabulary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "base/error.hpp"
#include "tokens/tokenizer_reader.hpp"

namespace maestro::tokens {

void Vocabulary::read(std::string_view json, const std::string& path) {
    read_tokenizer(json, path, [&](std::int32_t id, std::string_view spelled, bool special) {
        tokens_.push_back({id, std::string(spelled), special});
    });
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
    const auto quoted = [](std::string_view spelled) { return "'" + shown(spelled) + "'"; };
    const auto token = [&](bool has, auto at) { return has ? quoted(at->text) : std::string("no token"); };
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
    constexpr std::size_t kMostSpecial = 3;  // that are named
    std::size_t named = 0;
    for (const auto& [name, pair] : ids) {
        if (pair[0] == pair[1] || named++ >= kMostSpecial) continue;
        text += fmt::format("{} {} is {} and {}", named == 1 ? "; special tokens:" : ",", quoted(name),
                            number(pair[0]), number(pair[1]));
    }
    if (named > kMostSpecial) text += fmt::format(", and {} more", named - kMostSpecial);
    return text;
}

}  // namespace maestro::tokens
