// Qwen3: queries and keys are normalized by head.
#include "families/decoder.hpp"

namespace maestro::families {

namespace {

void read_qwen3(const ConfigObject& config, ModelKeys& keys) {
    read_decoder(config, {.kv_heads = 32, .head_dim = 128}, keys);
    read_tied(config, keys);
}

constexpr std::array<FolderModel, 1> kQwen3Models = {{{.kind = model::ModelSpec::Kind::language,
                                                       .prefix = "model.",
                                                       .tensors = kDecoderTensors,
                                                       .read = read_qwen3}}};

}  // namespace

const Family kQwen3{.name = "qwen3", .models = kQwen3Models};

}  // namespace maestro::families
