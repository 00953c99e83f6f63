#include "families/config_object.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.hpp"

namespace maestro::families {

namespace {

/// A message with texts of the file, which may be hostile: in ASCII if it is long, without control
/// characters, and the middle left out.
std::string readable(std::string message) {
    constexpr std::size_t kBefore = 200, kAfter = 100;
    const bool is_long = message.size() > kBefore + kAfter;
    if (is_long) message = message.substr(0, kBefore) + "..." + message.substr(message.size() - kAfter);
    for (char& c : message)
        if (static_cast<unsigned char>(c) < ' ' || c == '\x7f' || (is_long && (c & 0x80) != 0)) c = '?';
    return message;
}

}  // namespace

ConfigObject::ConfigObject(const Json& members, std::string path, std::string prefix)
    : members_(members), path_(std::move(path)), prefix_(std::move(prefix)) {}

void ConfigObject::refuse(std::string_view key, const std::string& what) const {
    throw Error(ExitCode::bad_data, fmt::format("{}: {}{}: {}", path_, prefix_, key, readable(what)),
                Scope::all_ranks);
}

const ConfigObject::Json* ConfigObject::find(const std::string& key) const {
    const auto at = members_.find(key);
    return at == members_.end() || at->is_null() ? nullptr : &*at;
}

std::string ConfigObject::text(const std::string& key, const std::string& otherwise) const {
    const Json* const value = find(key);
    if (!value) return otherwise;
    if (!value->is_string()) refuse(key, "has to be a text");
    return value->get<std::string>();
}

bool ConfigObject::flag(const std::string& key, bool otherwise) const {
    const Json* const value = find(key);
    if (!value) return otherwise;
    if (!value->is_boolean()) refuse(key, "has to be true or false");
    return value->get<bool>();
}

double ConfigObject::number(const std::string& key, double otherwise) const {
    const Json* const value = find(key);
    if (!value) return otherwise;
    if (!value->is_number()) refuse(key, "has to be a number");
    return value->get<double>();
}

std::int64_t ConfigObject::count(const std::string& key, std::int64_t otherwise) const {
    const Json* const value = find(key);
    if (!value) return otherwise;
    if (!value->is_number_unsigned() || value->get<std::uint64_t>() - 1 >= std::uint64_t{1} << 31)
        refuse(key, "has to be a whole number from 1 on");
    return value->get<std::int64_t>();
}

std::int64_t ConfigObject::count(const std::string& key) const {
    if (!find(key)) refuse(key, "is missing; take the config.json that the model was published with");
    return count(key, 0);
}

std::string ConfigObject::list(const std::string& key) const {
    const Json* const list = find(key);
    if (!list) refuse(key, "is missing");
    const auto fits = [](const Json& n) { return n.is_number_unsigned() && n.get<std::uint64_t>() <= 1000; };
    if (!list->is_array() || list->size() > 1000 || !std::all_of(list->begin(), list->end(), fits))
        refuse(key, "has to be a list of whole numbers");
    return list->dump();
}

ConfigObject ConfigObject::object(const std::string& key) const {
    const Json* const value = find(key);
    if (!value) return {Json::object(), path_, prefix_ + key + "."};
    if (!value->is_object()) refuse(key, "has to be an object");
    return {*value, path_, prefix_ + key + "."};
}

std::string text_of(double value) {
    return fmt::format("{}", value);
}

}  // namespace maestro::families
