#include "tokens/tokenizer_reader.hpp"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "tokens/detokenizer.hpp"

namespace maestro::tokens {

namespace {

using Json = nlohmann::json;

constexpr std::size_t kMostTokens = std::size_t{1} << 22;
constexpr std::size_t kMostLevels = 64, kMostDecoderKeys = 100;
constexpr std::size_t kShown = 100;  ///< bytes of a text of the file in an error

class Reader {
public:
    using Add = std::function<void(std::int32_t, std::string_view, bool)>;
    Reader(const std::string& path, const Add& add) : path_(path), add_(add) {}

    bool null() { return value(Json(nullptr)); }
    bool boolean(bool read) { return value(Json(read)); }
    bool number_integer(std::int64_t read) { return value(Json(read)); }
    bool number_unsigned(std::uint64_t read) { return value(Json(read)); }
    bool number_float(double read, const std::string&) { return value(Json(read)); }
    bool string(std::string& read) {
        if (in_decoder() && read.size() > kShown) read.resize(kShown);
        if (in_unigram()) add(read, Json(levels_[2].index), false);
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
        if (in_added_token())
            add(added_.content, levels_[1].is_object ? id_of_key() : added_.id, added_.special);
        return end();
    }
    bool end_array() { return end(); }
    bool parse_error(std::size_t, const std::string&, const Json::exception&) { return false; }

    TokenizerFile& file() { return file_; }

private:
    struct Level {
        bool is_object;
        std::string key;  ///< of the member that is read
        std::size_t index = 0;
    };

    [[noreturn]] void refuse(const std::string& what) const {
        throw Error(ExitCode::bad_data, fmt::format("{}: {}", path_, what));
    }
    bool at(std::size_t level, std::string_view key) const {
        return levels_.size() > level && levels_[level].is_object && levels_[level].key == key;
    }
    bool in_decoder() const { return at(0, "decoder"); }
    bool in_vocabulary() const {
        return levels_.size() == 3 && at(0, "model") && at(1, "vocab") && levels_[2].is_object;
    }
    /// Unigram's vocabulary is a list of [token, score].
    bool in_unigram() const {
        return levels_.size() == 4 && at(0, "model") && at(1, "vocab") && !levels_[2].is_object &&
               !levels_[3].is_object && levels_[3].index == 0;
    }
    bool in_added_token() const {
        return levels_.size() == 3 && levels_[2].is_object &&
               (levels_[1].is_object ? at(0, "added_tokens_decoder") : at(0, "added_tokens"));
    }
    /// added_tokens_decoder has ids as keys.
    Json id_of_key() const {
        const std::string& key = levels_[1].key;
        std::uint64_t id = 0;
        const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
        return error == std::errc() && end == key.data() + key.size() ? Json(id) : Json(shown(key));
    }

    bool begin(bool is_object) {
        if (levels_.empty() && !is_object) return false;
        if (in_vocabulary()) add(levels_.back().key, Json(is_object ? "an object" : "a list"), false);
        levels_.push_back({.is_object = is_object, .key = {}});
        if (levels_.size() > kMostLevels)
            refuse(fmt::format("its JSON has more than {} levels", kMostLevels));
        file_.has_vocabulary |= in_vocabulary();
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
            if (file_.decoder.size() == kMostDecoderKeys)
                refuse("its decoder has so many steps that it is not built");
            file_.decoder[place] = read.dump(-1, ' ', false, Json::error_handler_t::replace);
        }
        return next();
    }
    void add(std::string_view spelled, const Json& id, bool special) {
        if (!id.is_number_unsigned() || id.get<std::uint64_t>() > kMostId)
            refuse(fmt::format("the token '{}' has the id {}", shown(spelled), id.dump()));
        if (++tokens_ > kMostTokens) refuse(fmt::format("it has more than {} tokens", kMostTokens));
        add_(id.get<std::int32_t>(), spelled, special);
    }

    const std::string& path_;
    const Add& add_;
    std::vector<Level> levels_;
    TokenizerFile file_;
    std::size_t tokens_ = 0;
    struct {
        std::string content;
        Json id;
        bool special = false;
    } added_;
};

}  // namespace

TokenizerFile read_tokenizer(std::string_view text, const std::string& path,
                             const std::function<void(std::int32_t, std::string_view, bool)>& add) {
    Reader reader(path, add);
    // The parser takes a byte 0 for the end of the text.
    if (text.find('\0') != std::string_view::npos || !Json::sax_parse(text.begin(), text.end(), &reader))
        throw Error(ExitCode::bad_data, path + ": not a JSON object");
    return std::move(reader.file());
}

std::string shown(std::string_view spelled) {
    return escape_controls(valid_utf8(spelled.substr(0, kShown))) + (spelled.size() > kShown ? "..." : "");
}

}  // namespace maestro::tokens
