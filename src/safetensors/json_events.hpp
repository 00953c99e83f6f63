// What the readers of headers and indices have in common: JSON as a stream of events (SAX), without a tree.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "safetensors/message.hpp"

namespace maestro::safetensors {

/// What a handler learns of a value. Of texts it may move the contents away.
struct JsonValue {
    enum class Kind { null, text, size, other } kind = Kind::other;
    std::string* text = nullptr;
    std::uint64_t size = 0;  ///< a whole number that fits u64; all other numbers are `other`
};

/// Receives nlohmann::json's events and passes them on to `Handler`, which derives from this class and has
///     void on_key(std::string&), on_value(JsonValue), on_begin(bool is_object), on_end()
/// with depth() counting the objects and arrays that are open, at a begin the new one too, at an end not the
/// one that ends. A handler refuses by throwing.
template <class Handler>
class JsonEvents {
public:
    static constexpr int kMaxDepth = 4;

    explicit JsonEvents(const std::filesystem::path& file) : file_(file) {}

    bool null() { return pass({.kind = JsonValue::Kind::null}); }
    bool boolean(bool) { return pass({}); }
    bool number_integer(std::int64_t) { return pass({}); }  // negative
    bool number_unsigned(std::uint64_t value) { return pass({.kind = JsonValue::Kind::size, .size = value}); }
    bool number_float(double, const std::string&) { return pass({}); }
    bool string(std::string& value) { return pass({.kind = JsonValue::Kind::text, .text = &value}); }
    bool binary(nlohmann::json::binary_t&) { return false; }
    bool start_object(std::size_t) { return begin(true); }
    bool start_array(std::size_t) { return begin(false); }
    bool end_object() { return end(); }
    bool end_array() { return end(); }
    bool key(std::string& name) {
        handler().on_key(name);
        return true;
    }
    bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
        position_ = position > 0 ? position - 1 : 0;  // the parser counts from 1
        return false;
    }

    /// `where` is the offset of the text in the file.
    void parse(std::string_view text, std::uint64_t where) {
        // The parser takes a byte 0 for the end of the text, and would not see what follows.
        if (const auto zero = text.find('\0'); zero != std::string_view::npos) not_json(where + zero);
        if (!nlohmann::json::sax_parse(text.begin(), text.end(), this)) not_json(where + position_);
    }

protected:
    const std::filesystem::path& file() const { return file_; }
    int depth() const { return depth_; }

private:
    Handler& handler() { return static_cast<Handler&>(*this); }
    bool pass(JsonValue value) {
        if (depth_ == 0) refuse(file_, fmt::format("its JSON is not an object; {}", kMakeAgain));
        handler().on_value(value);
        return true;
    }
    bool begin(bool is_object) {
        if (++depth_ > kMaxDepth)
            refuse(file_, fmt::format("its JSON has more than {} levels; {}", kMaxDepth, kMakeAgain));
        if (depth_ == 1 && !is_object)
            refuse(file_, fmt::format("its JSON is not an object; {}", kMakeAgain));
        if (depth_ > 1) handler().on_begin(is_object);
        return true;
    }
    bool end() {
        if (--depth_ > 0) handler().on_end();
        return true;
    }
    [[noreturn]] void not_json(std::uint64_t position) const {
        refuse(file_,
               fmt::format("not valid JSON in UTF-8 at byte {} of the file; {}", position, kMakeAgain));
    }

    const std::filesystem::path& file_;
    std::size_t position_ = 0;
    int depth_ = 0;
};

}  // namespace maestro::safetensors
