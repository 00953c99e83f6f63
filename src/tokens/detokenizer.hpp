// From token ids to text: the inverse of the tokenizer of a sample file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace maestro::tokens {

class Detokenizer {
public:
    /// The tokenizer "bytes" of sample files: ids 0 to 255 are the bytes of UTF-8 (docs/file_formats.md).
    static Detokenizer bytes();
    /// The tokenizer of a Hugging Face tokenizer.json: byte-level BPE (GPT-2, Llama 3, Qwen), or BPE whose
    /// unknown characters are bytes (Llama 2). `path` is named in errors: Error(bad_data) for a text that is
    /// not a tokenizer, one with another decoder, and one of more than 2^22 tokens. Needs no more memory than
    /// the text and 16 bytes for each token, whatever the ids.
    static Detokenizer from_json(std::string_view text, const std::string& path);

    /// The text of these tokens, special ones included, as UTF-8. What is not valid UTF-8 becomes U+FFFD. An
    /// id without a token becomes "<id N>".
    std::string text(std::span<const std::int32_t> ids) const;
    /// Whether text cannot contain the token: it is a special one, such as the end of a turn, or there is no
    /// token of this id, as of those that make_jsonl.py adds to a tokenizer.
    bool is_special(std::int32_t id) const;

private:
    /// How the tokens of a sequence become text.
    enum class Decoder {
        bytes,          ///< pieces are bytes, which make up the text
        byte_fallback,  ///< pieces are text, or single bytes; one space is stripped from the beginning
    };
    /// A token as the tokenizer spells it: where in spelled_.
    struct Token {
        std::int32_t id;
        std::uint32_t begin, size : 31, special : 1;
    };
    explicit Detokenizer(Decoder decoder) : decoder_(decoder) {}
    void add(std::int32_t id, std::string_view spelled, bool special);
    /// After the last add(): the last token of an id counts.
    void sort();
    const Token* find(std::int32_t id) const;
    std::string_view spelling(const Token& token) const {
        return std::string_view(spelled_).substr(token.begin, token.size);
    }

    Decoder decoder_;
    std::string spelled_;
    std::vector<Token> tokens_;  ///< by id
};

/// The ids "eos_token_id" of a model folder's config.json or generation_config.json: a number or a list. None
/// where the text is not such a file.
std::vector<std::int32_t> end_tokens(std::string_view json);

/// Returns the text with every byte that is not part of valid UTF-8 replaced by U+FFFD, as Python's
/// bytes.decode(errors="replace") does.
std::string valid_utf8(std::string_view bytes);
/// Returns valid UTF-8 with control characters, but for line breaks, and those that reorder text written as
/// \xHH or \u{HHHH}, so that a terminal can show it.
std::string escape_controls(std::string_view text);

}  // namespace maestro::tokens
