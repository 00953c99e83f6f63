#include "parallel/frozen_parameters.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

namespace maestro::parallel {

namespace {

/// Removes the first component of a name and the dot behind it from `rest`, and returns the component.
std::string_view next_component(std::string_view& rest) {
    const std::size_t dot = rest.find('.');
    const std::string_view component = rest.substr(0, dot);
    rest = dot == std::string_view::npos ? std::string_view{} : rest.substr(dot + 1);
    return component;
}

std::optional<long> number_of(std::string_view text) {
    long number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || end != text.data() + text.size() || text.front() == '-') return std::nullopt;
    return number;
}

struct NumberRange {
    long first, last;
};

std::optional<NumberRange> range_of(std::string_view component) {
    const std::size_t dash = component.find('-');
    if (dash == std::string_view::npos) return std::nullopt;
    const auto first = number_of(component.substr(0, dash)), last = number_of(component.substr(dash + 1));
    if (!first || !last) return std::nullopt;
    return NumberRange{*first, *last};
}

bool fits(std::string_view pattern, std::string_view component) {
    if (pattern == component) return true;
    const auto range = range_of(pattern);
    const auto number = number_of(component);
    return range && number && range->first <= *number && *number <= range->last;
}

bool begins_with(std::string_view name, std::string_view part) {
    while (!part.empty()) {
        if (name.empty()) return false;
        const std::string_view pattern = next_component(part);
        if (!fits(pattern, next_component(name))) return false;
    }
    return true;
}

}  // namespace

FrozenParameters FrozenParameters::all_but(std::vector<std::string> components) {
    return FrozenParameters().and_all_but(std::move(components));
}

FrozenParameters FrozenParameters::and_all_but(std::vector<std::string> components) const {
    FrozenParameters frozen = *this;
    frozen.trained_components_ = std::move(components);
    return frozen;
}

bool FrozenParameters::contains_part(std::string_view part) const {
    return std::any_of(parts_.begin(), parts_.end(),
                       [&](const std::string& each) { return !each.empty() && begins_with(part, each); });
}

bool FrozenParameters::contains(std::string_view name) const {
    if (contains_part(name)) return true;
    if (trained_components_.empty()) return false;
    while (!name.empty())
        if (std::find(trained_components_.begin(), trained_components_.end(), next_component(name)) !=
            trained_components_.end())
            return false;
    return true;
}

std::vector<std::string> ends_of_range(const std::string& part) {
    std::string first, last;
    for (std::string_view rest = part; !rest.empty();) {
        const std::string_view component = next_component(rest);
        const auto range = range_of(component);
        for (auto* end : {&first, &last}) {
            if (!end->empty()) *end += '.';
            *end +=
                range ? std::to_string(end == &first ? range->first : range->last) : std::string(component);
        }
    }
    return first == last ? std::vector{part} : std::vector{first, last};
}

}  // namespace maestro::parallel
