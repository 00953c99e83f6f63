// Mistral: the form of Llama, with a window of attention.
#include "families/decoder.hpp"

namespace maestro::families {

namespace {

void read_mistral(const ConfigObject& config, ModelKeys& keys) {
    read_decoder(config, {.kv_heads = 8, .window = 4096}, keys);
    read_tied(config, keys);
}

constexpr std::array<FolderModel, 1> kMistralModels = {{{.kind = model::ModelSpec::Kind::language,
                                                         .prefix = "model.",
                                                         .layer = {.head_norm = false},
                                                         .tensors = kDecoderTensors,
                                                         .read = read_mistral}}};

}  // namespace

const Family kMistral{.name = "mistral", .models = kMistralModels};

}  // namespace maestro::families
