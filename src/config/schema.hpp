// The keys of a deck: for each its target, its type and the allowed values.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "config/deck.hpp"

namespace maestro::config {

using Pair = std::array<double, 2>;
using Target =
    std::variant<std::string*, std::int64_t*, std::uint64_t*, int*, double*, bool*, Pair*, std::vector<int>*,
                 std::vector<std::string>*, std::optional<double>*, std::optional<std::int64_t>*>;

/// One key of a table. Numbers, also those of a pair or list, lie in [low, high]; texts ignore these. `words`
/// lists the values of a text, or of the texts of a list (empty: any).
struct Key {
    std::string name;
    Target target;
    bool required = false;
    double low = -1e300, high = 1e300;
    std::vector<std::string> words = {};
    std::vector<std::string> not_built = {};  ///< words that are refused as not built yet
};

/// Which keys a command requires. `samples`: data.train or [data.lengths].
struct Needs {
    bool output = true, samples = false, validation = false, batch = true, models = true, training = true;
};
Needs needs_of(Command command, Times times);

std::vector<Key> keys_of(Run& run, const Needs& needs);
std::vector<Key> keys_of(Data& data, const Needs& needs);
std::vector<Key> keys_of(Lengths& lengths);
std::vector<Key> keys_of(Train& train, const Needs& needs);
std::vector<Key> keys_of(Optimizer& optimizer, const Needs& needs);
std::vector<Key> keys_of(Checkpoint& checkpoint);
std::vector<Key> keys_of(Metrics& metrics);
std::vector<Key> keys_of(Emulated& emulated);
std::vector<Key> keys_of(Schedule& schedule);
std::vector<Key> keys_of(Model& model);
std::vector<Key> keys_of(Section& section, const Needs& needs);
std::vector<Key> layout_keys_of(Section& section);
std::vector<Key> keys_of(Distill& distill);
std::vector<Key> keys_of(LoraTable& lora);
std::vector<Key> keys_of(Edge& edge);

/// A number for a message, whole numbers with all their digits.
std::string text_of(double number);
/// "text", "whole number from 1 to 64", "one of a, b".
std::string describe(const Key& key);
/// The current value of the target.
std::string text_of(const Key& key);
/// Returns the name with the smallest edit distance to `name`, if it is small enough to suggest it, otherwise
/// "".
std::string nearest(const std::string& name, const std::vector<std::string>& names);

}  // namespace maestro::config
