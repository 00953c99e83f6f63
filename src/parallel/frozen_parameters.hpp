// Which parameters of a section that trains are frozen, by their names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace maestro::parallel {

/// A set of parameter names; by default empty. A plain value, the same on all ranks of a section.
class FrozenParameters {
public:
    FrozenParameters() = default;
    /// The parameters of some parts of a model. A part is the beginning of their names, up to a dot:
    /// "embedding", "layers.3" or "layers.3.attention". A component may be a range of numbers, both ends
    /// included: "layers.0-11" or "layers.0-11.mlp".
    explicit FrozenParameters(std::vector<std::string> parts) : parts_(std::move(parts)) {}
    /// All parameters but those of which one of `components` is a component of the name, which dots divide:
    /// "adapter" leaves "layers.0.attention.qkv.adapter.weight" trained.
    static FrozenParameters all_but(std::vector<std::string> components);

    /// Both these and those of all_but(components).
    FrozenParameters and_all_but(std::vector<std::string> components) const;

    bool contains(std::string_view name) const;
    /// Whether one of the parts contains all parameters of this part of a model.
    bool contains_part(std::string_view part) const;
    bool empty() const { return parts_.empty() && trained_components_.empty(); }
    bool operator==(const FrozenParameters&) const = default;

private:
    std::vector<std::string> parts_;
    std::vector<std::string> trained_components_;  ///< empty: contains() depends on the parts alone
};

/// The two parts at the ends of a range, "layers.0" and "layers.11", or `part` alone if it has no range.
std::vector<std::string> ends_of_range(const std::string& part);

}  // namespace maestro::parallel
