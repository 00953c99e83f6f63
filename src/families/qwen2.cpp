// Qwen2 and Qwen2.5: the form of Llama, with biases of queries, keys and values.
#include "families/decoder.hpp"

namespace maestro::families {

namespace {

void read_qwen2(const ConfigObject& config, ModelKeys& keys) {
    read_decoder(config, {.kv_heads = 32}, keys);
    read_tied(config, keys);
}

constexpr std::array<FolderModel, 1> kQwen2Models = {
    {{.kind = model::ModelSpec::Kind::language,
      .prefix = "model.",
      .layer = {.bias = model::LayerForm::Bias::qkv, .head_norm = false},
      .tensors = kDecoderTensors,
      .read = read_qwen2}}};

}  // namespace

const Family kQwen2{.name = "qwen2", .models = kQwen2Models};

}  // namespace maestro::families
