// Reads a tokenizer.json as a stream of events (SAX), without a tree: most of it are merges of BPE, which
// only encoding needs, and what a hostile file has instead would take more memory than the text.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace maestro::tokens {

inline constexpr std::uint64_t kMostId = 0x7FFFFFFF;  ///< ids of tokens are 32-bit integers

/// What a text says besides the tokens, which are handed on one by one.
struct TokenizerFile {
    /// The scalars of the member "decoder" by their places: "decoders/0/type", with texts in quotes.
    std::map<std::string, std::string, std::less<>> decoder;
    bool has_vocabulary = false;  ///< model.vocab is an object of tokens and their ids
};

/// Calls add(id, spelled, special) for each token of the model's vocabulary, whatever kind of model it is,
/// and for each added one, in the order of the file. Added tokens are those of "added_tokens", and in a
/// tokenizer_config.json those of "added_tokens_decoder". `path` is named in errors: Error(bad_data) for a
/// text that is not a JSON object, for ids that are none, and for more than 2^22 tokens.
TokenizerFile read_tokenizer(
    std::string_view text, const std::string& path,
    const std::function<void(std::int32_t id, std::string_view spelled, bool special)>& add);

/// A text of the file for a message: its first 100 bytes, as a terminal can show them.
std::string shown(std::string_view spelled);

}  // namespace maestro::tokens
