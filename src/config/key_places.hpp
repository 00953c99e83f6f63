// Where the keys of a deck were set, so that an error of a key can be reported at its place.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace maestro::config {

class KeyPlaces {
public:
    KeyPlaces() = default;
    /// `path` of the file.
    explicit KeyPlaces(std::string path) : path_(std::move(path)) {}

    const std::string& path() const { return path_; }
    /// The file sets `key` at this line and column, both counted from 1.
    void add(const std::string& key, std::uint32_t line, std::uint32_t column) {
        lines_.insert_or_assign(key, std::pair{line, column});
    }
    /// --set sets `key`, which overrides the file.
    void add_override(const std::string& key) { overridden_.insert(key); }
    bool contains(const std::string& key) const { return lines_.contains(key) || overridden_.contains(key); }
    /// "PATH:LINE:COLUMN: KEY: WHAT"; "--set KEY: WHAT" where an override set the key, "PATH: KEY: WHAT"
    /// where nothing did.
    std::string message(const std::string& key, const std::string& what) const;

private:
    std::string path_;
    std::map<std::string, std::pair<std::uint32_t, std::uint32_t>> lines_;
    std::set<std::string> overridden_;
};

}  // namespace maestro::config
