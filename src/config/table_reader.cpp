#include "config/table_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.hpp"

namespace maestro::config {

bool good_name(const std::string& name) {
    return !name.empty() &&
           name.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-") ==
               std::string::npos;
}

void TableReader::fail(const toml::source_region& where, const std::string& key, const std::string& what) {
    errors_.push_back(
        fmt::format("{}:{}:{}: {}: {}", path(), where.begin.line, where.begin.column, key, what));
}

std::string TableReader::check_text(const Key& key, const std::string& value) {
    if (key.required && value.empty()) return "is empty; allowed: text of at least one character";
    if (std::find(key.not_built.begin(), key.not_built.end(), value) != key.not_built.end())
        return fmt::format("'{}' is not built yet; allowed: {}", value, describe(key));
    if (!key.words.empty() && std::find(key.words.begin(), key.words.end(), value) == key.words.end())
        return fmt::format("'{}' is not known; allowed: {}", value, describe(key));
    return "";
}

template <class T>
std::string store_number(const Key& key, T* target, double value) {
    if (!(value >= key.low && value <= key.high))
        return fmt::format("{} is out of range; allowed: {}", text_of(value), describe(key));
    if constexpr (std::is_same_v<T, std::optional<double>>)
        *target = value;
    else if constexpr (std::is_same_v<T, std::optional<std::int64_t>>)
        *target = static_cast<std::int64_t>(value);
    else
        *target = static_cast<T>(value);
    return "";
}

std::string TableReader::store(const Key& key, const toml::node& node) {
    const std::string wrong = fmt::format("wrong type; allowed: {}", describe(key));
    return std::visit(
        [&](auto* target) -> std::string {
            using T = std::remove_pointer_t<decltype(target)>;
            if constexpr (std::is_same_v<T, std::string>) {
                if (!node.is_string()) return wrong;
                *target = node.as_string()->get();
                return check_text(key, *target);
            } else if constexpr (std::is_same_v<T, bool>) {
                if (!node.is_boolean()) return wrong;
                *target = node.as_boolean()->get();
                return "";
            } else if constexpr (std::is_same_v<T, double>) {
                if (!node.is_floating_point() && !node.is_integer()) return wrong;
                return store_number(key, target, *node.value<double>());
            } else if constexpr (std::is_same_v<T, std::optional<double>>) {
                if (!node.is_floating_point() && !node.is_integer()) return wrong;
                return store_number(key, target, *node.value<double>());
            } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
                const auto* list = node.as_array();
                if (!list) return wrong;
                T texts;
                for (const toml::node& each : *list) {
                    if (!each.is_string()) return wrong;
                    texts.push_back(each.as_string()->get());
                    if (auto problem = check_text(key, texts.back()); !problem.empty()) return problem;
                }
                *target = std::move(texts);
                return "";
            } else if constexpr (std::is_same_v<T, Pair>) {
                const auto* list = node.as_array();
                if (!list || list->size() != 2 || !(*list)[0].is_number() || !(*list)[1].is_number())
                    return wrong;
                Pair pair;
                for (std::size_t i = 0; i < 2; ++i)
                    if (auto problem = store_number(key, &pair[i], *(*list)[i].value<double>());
                        !problem.empty())
                        return problem;
                *target = pair;
                return "";
            } else if constexpr (std::is_same_v<T, std::vector<int>>) {
                const auto* list = node.as_array();
                if (!list) return wrong;
                T numbers(list->size());
                for (std::size_t i = 0; i < numbers.size(); ++i) {
                    if (!(*list)[i].is_integer()) return wrong;
                    if (auto problem = store_number(key, &numbers[i],
                                                    static_cast<double>(*(*list)[i].value<std::int64_t>()));
                        !problem.empty())
                        return problem;
                }
                *target = std::move(numbers);
                return "";
            } else {
                if (!node.is_integer()) return wrong;
                return store_number(key, target, static_cast<double>(node.as_integer()->get()));
            }
        },
        key.target);
}

std::string TableReader::set_text(const Key& key, const std::string& value) {
    return std::visit(
        [&](auto* target) -> std::string {
            using T = std::remove_pointer_t<decltype(target)>;
            constexpr bool kList = std::is_same_v<T, Pair> || std::is_same_v<T, std::vector<int>> ||
                                   std::is_same_v<T, std::vector<std::string>>;
            constexpr bool kFraction = std::is_same_v<T, double> || std::is_same_v<T, std::optional<double>>;
            const std::string wrong = fmt::format("'{}' does not fit; allowed: {}", value, describe(key));
            if constexpr (std::is_same_v<T, std::string>) {
                *target = value;
                return check_text(key, *target);
            } else if constexpr (std::is_same_v<T, bool>) {
                if (value != "true" && value != "false") return wrong;
                *target = value == "true";
                return "";
            } else if constexpr (kList) {
                try {
                    return store(key, *toml::parse("list = " + value).get("list"));
                } catch (const toml::parse_error&) {
                    return wrong;
                }
            } else {
                char* end = nullptr;
                const double number = std::strtod(value.c_str(), &end);
                if (value.empty() || *end != '\0' || !std::isfinite(number)) return wrong;
                if (!kFraction && number != std::floor(number)) return wrong;
                return store_number(key, target, number);
            }
        },
        key.target);
}

void TableReader::fill(const toml::table& table, const std::string& prefix, const std::vector<Key>& keys,
                       const std::set<std::string>& inner) {
    std::vector<std::string> names(inner.begin(), inner.end());
    for (const Key& key : keys) names.push_back(key.name);
    for (const Key& key : keys) {
        slots_.insert_or_assign(prefix + key.name, key);
        if (!key.required) defaults_.insert_or_assign(prefix + key.name, text_of(key));
    }
    for (const auto& [name, node] : table) {
        const std::string full = prefix + std::string(name.str());
        places_.add(full, node.source().begin.line, node.source().begin.column);
        if (inner.contains(std::string(name.str()))) continue;
        const auto at = slots_.find(full);
        if (at == slots_.end()) {
            const std::string near = nearest(std::string(name.str()), names);
            fail(node.source(), full,
                 fmt::format("unknown key; {}", near.empty()
                                                    ? fmt::format("known keys: {}", fmt::join(names, ", "))
                                                    : fmt::format("did you mean {}{}?", prefix, near)));
        } else if (const std::string problem = store(at->second, node); !problem.empty()) {
            fail(node.source(), full, problem);
        }
    }
}

void TableReader::override_with(const std::vector<std::string>& overrides) {
    std::vector<std::string> names;
    for (const auto& [name, key] : slots_) names.push_back(name);
    for (const std::string& text : overrides) {
        const auto equals = text.find('=');
        const std::string name = text.substr(0, equals);
        if (equals == std::string::npos || name.empty()) {
            errors_.push_back(fmt::format("--set {}: not of the form KEY=VALUE", text));
            continue;
        }
        places_.add_override(name);
        const auto at = slots_.find(name);
        if (at == slots_.end()) {
            const std::string near = nearest(name, names);
            errors_.push_back(fmt::format("--set {}: unknown key{}", name,
                                          near.empty() ? "" : "; did you mean " + near + "?"));
            continue;
        }
        if (text.find('\n') != std::string::npos)  // outputs store overrides as comments
            errors_.push_back(fmt::format("--set {}: the value has a line break; allowed: one line", name));
        else if (const std::string problem = set_text(at->second, text.substr(equals + 1)); !problem.empty())
            errors_.push_back(fmt::format("--set {}: {}", name, problem));
        overrides_.emplace_back(name, text.substr(equals + 1));
    }
}

void TableReader::complete(const std::string& name, const std::string& value, const std::string& source) {
    const auto at = slots_.find(name);
    if (at == slots_.end()) return;
    const Key& key = at->second;
    const std::string before = text_of(key);
    if (const std::string problem = set_text(key, value); !problem.empty())
        errors_.push_back(fmt::format("{}: {}: {}", source, name, problem));
    const std::string after = text_of(key);
    const bool set = places_.contains(name) || completed_.contains(name);
    if (set && before != after)
        fail_at(name, fmt::format("{} here, but {} in {}; leave the key out", before, after, source));
    completed_.insert(name);
}

bool TableReader::lacks(const std::string& prefix) const {
    return std::any_of(slots_.begin(), slots_.end(), [&](const auto& slot) {
        return slot.first.starts_with(prefix) && is_missing(slot.first, slot.second);
    });
}

void TableReader::check_required() {
    for (const auto& [name, key] : slots_) {
        if (is_missing(name, key))
            errors_.push_back(fmt::format("{}: {}: missing; it must be {}", path(), name, describe(key)));
    }
}

void refuse_all(const std::vector<std::string>& errors) {
    throw Error(ExitCode::bad_deck, fmt::format("{}", fmt::join(errors, "\n")), Scope::all_ranks);
}

}  // namespace maestro::config
