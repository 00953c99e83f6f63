// The members of a model folder's config.json, read with errors that name the file and the key.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace maestro::families {

/// An object of the file. All functions throw Error(bad_data, all_ranks) for a member of the wrong type.
class ConfigObject {
public:
    using Json = nlohmann::json;

    /// `path` is that of the file, `prefix` that of the object within it: "text_config.", or empty.
    ConfigObject(const Json& members, std::string path, std::string prefix = "");

    /// Throws Error(bad_data, all_ranks): "FILE: KEY: WHAT".
    [[noreturn]] void refuse(std::string_view key, const std::string& what) const;
    /// Whether the file has the member, if only as null.
    bool has(const std::string& key) const { return members_.contains(key); }
    /// Null where it is missing, or null in the file. Lives as long as the object.
    const Json* find(const std::string& key) const;

    // The value, or `otherwise` where it is missing or null.
    std::string text(const std::string& key, const std::string& otherwise) const;
    bool flag(const std::string& key, bool otherwise) const;
    double number(const std::string& key, double otherwise) const;
    /// A whole number from 1 to 2^31.
    std::int64_t count(const std::string& key, std::int64_t otherwise) const;
    /// The same of a member that has to be there.
    std::int64_t count(const std::string& key) const;
    /// A list of whole numbers, as text, which has to be there.
    std::string list(const std::string& key) const;
    /// An empty object where it is missing or null.
    ConfigObject object(const std::string& key) const;

private:
    Json members_;
    std::string path_, prefix_;
};

/// The number as text that reads back as the same.
std::string text_of(double value);

}  // namespace maestro::families
