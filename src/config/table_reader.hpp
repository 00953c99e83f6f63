// Reads TOML tables into plain structs by a schema, and collects all errors with their places.
#pragma once

#ifndef NDEBUG
#define NDEBUG  // toml++ 3.3.0 aborts on "[(" with its assertions on
#endif
#define TOML_EXCEPTIONS 1
#define TOML_ENABLE_FORMATTERS 0
#define TOML_HEADER_ONLY 0  // toml.cpp has the rest
#include <toml++/toml.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "config/key_places.hpp"
#include "config/schema.hpp"

namespace maestro::config {

/// Whether this may be the name of a section or model: letters, digits, _ and -.
bool good_name(const std::string& name);

class TableReader {
public:
    /// `path` is named in errors.
    explicit TableReader(std::string path) : places_(std::move(path)) {}

    /// Stores the values of the table in the targets of `keys`, whose full names begin with `prefix`.
    /// `inner`: the tables inside it, which are read separately.
    void fill(const toml::table& table, const std::string& prefix, const std::vector<Key>& keys,
              const std::set<std::string>& inner = {});
    /// Applies "KEY=VALUE" of --set to keys that were filled before.
    void override_with(const std::vector<std::string>& overrides);
    /// Sets a key that was filled before to the value that `source` has for it, or refuses another value that
    /// a table or an override has set.
    void complete(const std::string& name, const std::string& value, const std::string& source);
    /// Whether a required key that begins with `prefix` was not set.
    bool lacks(const std::string& prefix) const;
    /// Refuses required keys that were not set.
    void check_required();

    void fail(const toml::source_region& where, const std::string& key, const std::string& what);
    /// Adds an error of a key at the place where it was set.
    void fail_at(const std::string& key, const std::string& what) {
        errors_.push_back(places_.message(key, what));
    }

    const std::string& path() const { return places_.path(); }
    /// Where the tables and overrides read so far set their keys.
    const KeyPlaces& places() const { return places_; }
    const std::vector<std::string>& errors() const { return errors_; }
    const std::map<std::string, Key>& slots() const { return slots_; }
    /// The defaults of the optional keys.
    const std::map<std::string, std::string>& defaults() const { return defaults_; }
    /// The overrides so far, in order.
    const std::vector<std::pair<std::string, std::string>>& overrides() const { return overrides_; }

private:
    /// Stores a value in the target of the key; returns the error, or "".
    static std::string store(const Key& key, const toml::node& node);
    static std::string set_text(const Key& key, const std::string& value);
    static std::string check_text(const Key& key, const std::string& value);
    bool is_missing(const std::string& name, const Key& key) const {
        return key.required && !places_.contains(name) && !completed_.contains(name);
    }

    KeyPlaces places_;
    std::vector<std::string> errors_;
    std::map<std::string, Key> slots_;  ///< all keys by their full names
    std::map<std::string, std::string> defaults_;
    std::vector<std::pair<std::string, std::string>> overrides_;
    std::set<std::string> completed_;
};

[[noreturn]] void refuse_all(const std::vector<std::string>& errors);

/// Parses `text` and returns what `read` makes of the root table. Throws Error(bad_deck, all_ranks) with the
/// errors of the parser or the reader, a line each.
template <class Read>
auto read_toml(std::string_view text, TableReader& reader, Read&& read) {
    toml::table root;
    try {
        root = toml::parse(text, reader.path());
    } catch (const toml::parse_error& error) {
        const auto& at = error.source().begin;
        refuse_all({reader.path() + ":" + std::to_string(at.line) + ":" + std::to_string(at.column) + ": " +
                    std::string(error.description())});
    }
    auto made = read(root);
    if (!reader.errors().empty()) refuse_all(reader.errors());
    return made;
}

}  // namespace maestro::config
