// What stands in a text by a marker token and is read by an encoder.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace maestro {

struct Item {
    enum class Kind : std::uint8_t { picture, film, sound };
    int height = 0;  ///< pixels; of a sound 1
    int width = 0;   ///< pixels, or the samples of a sound
    Kind kind = Kind::picture;
    bool operator==(const Item&) const = default;
};
inline constexpr std::size_t kItemKinds = 3;
constexpr const char* word_of(Item::Kind kind) {
    return kind == Item::Kind::picture ? "picture" : kind == Item::Kind::film ? "film" : "sound";
}

/// By kind of item: the token that stands for one in a text; -1: none.
class Markers {
public:
    Markers() { tokens_.fill(-1); }
    /// Of pictures alone.
    explicit Markers(std::int32_t picture) : Markers() { set(Item::Kind::picture, picture); }
    void set(Item::Kind kind, std::int32_t token) { tokens_[static_cast<std::size_t>(kind)] = token; }
    std::int32_t of(Item::Kind kind) const { return tokens_[static_cast<std::size_t>(kind)]; }
    /// The kind of item that a token, at least 0, stands for, or nothing.
    std::optional<Item::Kind> kind_of(std::int32_t token) const {
        const auto at = std::find(tokens_.begin(), tokens_.end(), token);
        if (at == tokens_.end()) return {};
        return static_cast<Item::Kind>(at - tokens_.begin());
    }
    /// Whether one of the tokens stands for an item. Compilers vectorize this loop, because it has no exit.
    bool any_in(std::span<const std::int32_t> tokens) const {
        int any = 0;
        for (const std::int32_t token : tokens)
            for (const std::int32_t marker : tokens_) any |= static_cast<int>(token == marker);
        return any != 0;
    }
    bool operator==(const Markers&) const = default;

private:
    std::array<std::int32_t, kItemKinds> tokens_;
};

}  // namespace maestro
