// Qwen3-VL: Qwen3, whose positions have three axes, beside a vision tower.
#include "families/qwen3_tower.hpp"

namespace maestro::families {

namespace {

void read_qwen3_vl(const ConfigObject& root, ModelKeys& keys) {
    const ConfigObject text = root.object("text_config");
    read_beside_tower(root, text, keys);
    read_decoder(text, {.kv_heads = 32, .head_dim = 128, .rope_theta = 0}, keys);
    read_tied(root, keys);
}

constexpr std::array<FolderModel, 2> kQwen3VlModels = {{{.kind = model::ModelSpec::Kind::language,
                                                         .prefix = "model.language_model.",
                                                         .tensors = kDecoderTensors,
                                                         .read = read_qwen3_vl},
                                                        kTower}};

}  // namespace

const Family kQwen3Vl{.name = "qwen3_vl", .models = kQwen3VlModels};

}  // namespace maestro::families
