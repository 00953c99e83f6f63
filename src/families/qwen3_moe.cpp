// Qwen3-MoE: Qwen3 with experts.
#include "families/experts.hpp"

namespace maestro::families {

namespace {

constexpr std::array<TensorGroup, 3> kQwen3MoeTensors = {{{"layers.", "layers.", true, kExpertsLayer},
                                                          {"layers.", "layers.", true, kDecoderLayer},
                                                          {"", "", false, kDecoderEnds}}};

void read_qwen3_moe(const ConfigObject& config, ModelKeys& keys) {
    read_decoder(config, {.kv_heads = 4}, keys);
    read_tied(config, keys);
    read_experts(config, keys);
}

constexpr std::array<FolderModel, 1> kQwen3MoeModels = {{{.kind = model::ModelSpec::Kind::language,
                                                          .prefix = "model.",
                                                          .experts = FolderModel::Experts::always,
                                                          .tensors = kQwen3MoeTensors,
                                                          .read = read_qwen3_moe}}};

}  // namespace

const Family kQwen3Moe{.name = "qwen3_moe", .models = kQwen3MoeModels};

}  // namespace maestro::families
