// Deck keys, and words among their values, that were renamed. Decks, --set and checkpoints may still use the
// old names.
#pragma once

#include <map>
#include <string>
#include <utility>

namespace maestro::config {

class Renames {
public:
    /// Both are full names, such as "run.gpu_products".
    void add_key(const std::string& old_name, const std::string& name) { keys_[old_name] = name; }
    /// `name`: the current full name of the key.
    void add_word(const std::string& name, const std::string& old_word, const std::string& word) {
        words_[{name, old_word}] = word;
    }
    /// The current name of a key; names that were not renamed are returned as they are.
    const std::string& key(const std::string& name) const {
        const auto at = keys_.find(name);
        return at == keys_.end() ? name : at->second;
    }
    /// The current word for a value of the key `name`.
    const std::string& word(const std::string& name, const std::string& value) const {
        const auto at = words_.find({name, value});
        return at == words_.end() ? value : at->second;
    }
    /// Translates settings that an older build stored to the current names.
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
