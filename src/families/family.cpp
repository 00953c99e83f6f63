#include "families/family.hpp"

#include <algorithm>
#include <array>

namespace maestro::families {

namespace {

using model::LayerForm;

constexpr LayerForm kQwen3{};
constexpr LayerForm kLlama{.head_norm = false};

constexpr std::array<Family, 3> kFamilies = {{
    {"maestro", "", kQwen3, kQwen3},
    {"llama", "llama", kLlama, {}},
    {"qwen3", "qwen3", kQwen3, {}},
}};

}  // namespace

const Family* find_family(std::string_view name) {
    const auto* const found =
        std::find_if(kFamilies.begin(), kFamilies.end(), [&](const Family& f) { return f.name == name; });
    return found == kFamilies.end() ? nullptr : found;
}

}  // namespace maestro::families
