// The tokens of a tokenizer by their ids, to compare the tokenizer that made a sample file with that of a
// model's folder. Merges and all else that only encoding needs are skipped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace maestro::tokens {

class Vocabulary {
public:
    /// The tokens of a Hugging Face tokenizer.json: those of its model, whatever kind it is, and the added
    /// ones. `path` is named in errors: Error(bad_data) for what is no tokenizer.
    static Vocabulary from_json(std::string_view json, const std::string& path);
    /// Adds the tokens that a tokenizer_config.json has under "added_tokens_decoder", which the tokenizer of
    /// the folder has too. Error(bad_data).
    void add_config(std::string_view json, const std::string& path);
    /// The number of tokens.
    std::size_t size() const { return tokens_.size(); }
    /// How the tokens of `other` differ: empty where both have the same ones under the same ids, otherwise
    /// the numbers of tokens, the first id that differs, and some special tokens whose ids do. `here` and
    /// `there` name the two.
    std::string difference(const Vocabulary& other, std::string_view here, std::string_view there) const;

private:
    struct Token {
        std::int32_t id = 0;
        std::string text;
        bool special = false;
    };
    void read(std::string_view json, const std::string& path);

    std::vector<Token> tokens_;  ///< by id and text, each once
};

}  // namespace maestro::tokens
