// The vision model of Qwen3-VL, and what its language model has beyond Qwen3.
#pragma once

#include "families/decoder.hpp"

namespace maestro::families {

inline constexpr std::array<TensorNames, 12> kTowerLayer = {{
    {"attention.norm.weight", {{{"norm1.weight"}}}},
    {"attention.norm.bias", {{{"norm1.bias"}}}},
    {"attention.qkv.weight", {{{"attn.qkv.weight"}}}},
    {"attention.qkv.bias", {{{"attn.qkv.bias"}}}},
    {"attention.output.weight", {{{"attn.proj.weight"}}}},
    {"attention.output.bias", {{{"attn.proj.bias"}}}},
    {"mlp.norm.weight", {{{"norm2.weight"}}}},
    {"mlp.norm.bias", {{{"norm2.bias"}}}},
    {"mlp.up.weight", {{{"mlp.linear_fc1.weight"}}}},
    {"mlp.up.bias", {{{"mlp.linear_fc1.bias"}}}},
    {"mlp.down.weight", {{{"mlp.linear_fc2.weight"}}}},
    {"mlp.down.bias", {{{"mlp.linear_fc2.bias"}}}},
}};
inline constexpr std::array<TensorNames, 6> kTowerMerger = {{
    {"norm.weight", {{{"norm.weight"}}}},
    {"norm.bias", {{{"norm.bias"}}}},
    {"merger.weight", {{{"linear_fc1.weight"}}}},
    {"merger.bias", {{{"linear_fc1.bias"}}}},
    {"projector.weight", {{{"linear_fc2.weight"}}}},
    {"projector.bias", {{{"linear_fc2.bias"}}}},
}};
inline constexpr std::array<TensorNames, 3> kTowerEmbedding = {{
    {"patch.weight", {{{"patch_embed.proj.weight"}}}, TensorForm::convolution},
    {"patch.bias", {{{"patch_embed.proj.bias"}}}},
    {"position.weight", {{{"pos_embed.weight"}}}},
}};
inline constexpr std::array<TensorGroup, 4> kTowerTensors = {
    {{"layers.", "blocks.", true, kTowerLayer},
     {"deepstack.", "deepstack_merger_list.", true, kTowerMerger},
     {"", "merger.", false, kTowerMerger},
     {"", "", false, kTowerEmbedding}}};

/// Reads `vision_config` of the file.
void read_tower(const ConfigObject& root, ModelKeys& keys);

/// The vision model.
inline constexpr FolderModel kTower = {
    .kind = model::ModelSpec::Kind::vision,
    .prefix = "model.visual.",
    .layer = {.norm = model::LayerForm::Norm::layer,
              .mlp = model::LayerForm::Mlp::gelu,
              .bias = model::LayerForm::Bias::all,
              .head_norm = false,
              .fused_qkv = true},
    .vision = {.patches = PatchOrder::film, .wide_merger = true, .exact_gelu = true},
    .tensors = kTowerTensors,
    .read = read_tower};

/// Adds what the language model beside a tower has in the root of the file, and the axes of its positions
/// from `text`, its part of the file.
void read_beside_tower(const ConfigObject& root, const ConfigObject& text, ModelKeys& keys);

}  // namespace maestro::families
