// Deck keys, and words that they take, which have another name today. Decks, --set and checkpoints may still
// use the old ones.
#pragma once

#include <map>
#include <string>
#include <utility>

namespace maestro::config {

class Renames {
public:
    /// Full names: "run.gpu_products".
    void add_key(const std::string& old_name, const std::string& name) { keys_[old_name] = name; }
    /// `name`: today's full name of the key that takes the word.
    void add_word(const std::string& name, const std::string& old_word, const std::string& word) {
        words_[{name, old_word}] = word;
    }
    /// Today's name of a key; a name that is unknown here is its own.
    const std::string& key(const std::string& name) const {
        const auto at = keys_.find(name);
        return at == keys_.end() ? name : at->second;
    }
    /// Today's word for a value of the key `name`.
    const std::string& word(const std::string& name, const std::string& value) const {
        const auto at = words_.find({name, value});
        return at == words_.end() ? value : at->second;
    }
    /// Settings as an older build stored them, under today's names.
    std::map<std::string, std::string> applied_to(const std::map<std::string, std::string>& settings) const {
        std::map<std::string, std::string> renamed;
        for (const auto& [name, value] : settings)
            renamed.insert_or_assign(key(name), word(key(name), value));
        return renamed;
    }

private:
    std::map<std::string, std::string> keys_;
    std::map<std::pair<std::string, std::string>, std::string> words_;
};

}  // namespace maestro::config
