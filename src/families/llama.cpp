// Llama 3 (and others of its form): head_dim is the width divided by the heads.
#include "families/decoder.hpp"

namespace maestro::families {

namespace {

void read_llama(const ConfigObject& config, ModelKeys& keys) {
    read_decoder(config, {}, keys);
    read_tied(config, keys);
}

constexpr std::array<FolderModel, 1> kLlamaModels = {{{.kind = model::ModelSpec::Kind::language,
                                                       .prefix = "model.",
                                                       .layer = {.head_norm = false},
                                                       .tensors = kDecoderTensors,
                                                       .read = read_llama}}};

}  // namespace

const Family kLlama{.name = "llama", .models = kLlamaModels};

}  // namespace maestro::families
