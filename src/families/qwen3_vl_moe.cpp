// Qwen3-VL with experts: published folders have all experts of a layer in one tensor, transposed.
#include <fmt/format.h>

#include "families/experts.hpp"
#include "families/qwen3_tower.hpp"

namespace maestro::families {

namespace {

constexpr std::array<TensorNames, 3> kQwen3VlMoeLayer = {{
    {"mlp.router.weight", {{{"mlp.gate.weight"}}}},
    {"mlp.experts.gate_up.weight", {}, TensorForm::transposed_experts, "mlp.experts.gate_up_proj"},
    {"mlp.experts.down.weight", {}, TensorForm::transposed_experts, "mlp.experts.down_proj"},
}};
constexpr std::array<TensorGroup, 3> kQwen3VlMoeTensors = {{{"layers.", "layers.", true, kQwen3VlMoeLayer},
                                                            {"layers.", "layers.", true, kDecoderLayer},
                                                            {"", "", false, kDecoderEnds}}};

void read_qwen3_vl_moe(const ConfigObject& root, ModelKeys& keys) {
    const ConfigObject text = root.object("text_config");
    read_beside_tower(root, text, keys);
    read_decoder(text, {.kv_heads = 16, .rope_theta = 0}, keys);
    read_tied(root, keys);
    read_experts(text, keys);
    keys["router_normalize"] = "true";  // whatever `norm_topk_prob` says, as in transformers
    // The shape shows whether the matrices of experts are transposed.
    const std::int64_t width = text.count("hidden_size"), hidden = text.count("moe_intermediate_size");
    if (hidden == width || 2 * hidden == width)
        text.refuse("moe_intermediate_size",
                    fmt::format("{} with hidden_size {} is not built: nothing shows whether the matrices of "
                                "experts are transposed",
                                hidden, width));
}

constexpr std::array<FolderModel, 2> kQwen3VlMoeModels = {{{.kind = model::ModelSpec::Kind::language,
                                                            .prefix = "model.language_model.",
                                                            .experts = FolderModel::Experts::always,
                                                            .tensors = kQwen3VlMoeTensors,
                                                            .read = read_qwen3_vl_moe},
                                                           kTower}};

}  // namespace

const Family kQwen3VlMoe{.name = "qwen3_vl_moe", .models = kQwen3VlMoeModels};

}  // namespace maestro::families
