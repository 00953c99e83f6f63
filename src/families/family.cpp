#include "families/family.hpp"

#include <algorithm>
#include <array>

namespace maestro::families {

namespace {

using model::LayerForm;

constexpr LayerForm kQwen3{};
constexpr LayerForm kLlama{.head_norm = false};

constexpr LayerForm kQwen3Tower{.norm = LayerForm::Norm::layer,
                                .mlp = LayerForm::Mlp::gelu,
                                .bias = true,
                                .head_norm = false,
                                .fused_qkv = true};

constexpr std::array<Family, 5> kFamilies = {{
    {"maestro", "", kQwen3, kQwen3},
    {"llama", "llama", kLlama, {}},
    {"qwen3", "qwen3", kQwen3, {}},
    {"qwen3_moe", "qwen3_moe", kQwen3, {}},
    {.name = "qwen3_vl",
     .model_type = "qwen3_vl",
     .language = kQwen3,
     .vision = kQwen3Tower,
     .vision_form = {.patches = PatchOrder::film, .wide_merger = true, .exact_gelu = true},
     .language_prefix = "model.language_model.",
     .vision_prefix = "model.visual."},
}};

}  // namespace

const Family* find_family(std::string_view name) {
    const auto* const found =
        std::find_if(kFamilies.begin(), kFamilies.end(), [&](const Family& f) { return f.name == name; });
    return found == kFamilies.end() ? nullptr : found;
}

}  // namespace maestro::families
