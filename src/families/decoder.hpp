// What most families of language models share: decoders in the form of Llama.
#pragma once

#include "families/family.hpp"

namespace maestro::families {

inline constexpr std::array<TensorNames, 9> kDecoderLayer = {{
    {"attention.norm.weight", {{{"input_layernorm.weight"}}}},
    {"attention.qkv.weight",
     {{{"self_attn.q_proj.weight", Rows::queries},
       {"self_attn.k_proj.weight", Rows::keys},
       {"self_attn.v_proj.weight", Rows::keys}}}},
    {"attention.qkv.bias",
     {{{"self_attn.q_proj.bias", Rows::queries},
       {"self_attn.k_proj.bias", Rows::keys},
       {"self_attn.v_proj.bias", Rows::keys}}}},
    {"attention.q_norm.weight", {{{"self_attn.q_norm.weight"}}}},
    {"attention.k_norm.weight", {{{"self_attn.k_norm.weight"}}}},
    {"attention.output.weight", {{{"self_attn.o_proj.weight"}}}},
    {"mlp.norm.weight", {{{"post_attention_layernorm.weight"}}}},
    {"mlp.gate_up.weight", {{{"mlp.gate_proj.weight", Rows::mlp}, {"mlp.up_proj.weight", Rows::mlp}}}},
    {"mlp.down.weight", {{{"mlp.down_proj.weight"}}}},
}};
inline constexpr std::array<TensorNames, 2> kDecoderEnds = {{
    {"embedding.weight", {{{"embed_tokens.weight"}}}},
    {"norm.weight", {{{"norm.weight"}}}},
}};
inline constexpr std::array<TensorGroup, 2> kDecoderTensors = {
    {{"layers.", "layers.", true, kDecoderLayer}, {"", "", false, kDecoderEnds}}};

/// What transformers assumes where config.json does not say it; it differs by family.
struct DecoderDefaults {
    std::int64_t kv_heads = 0;  ///< 0: as many as heads, as null in the file
    std::int64_t head_dim = 0;  ///< 0: width / heads
    double rope_theta = 10000;  ///< 0: the file has to say it, because versions of transformers differ
    /// `sliding_window`; 0: the family has none, and the key is ignored. Null in the file means none, too.
    std::int64_t window = 0;
};
/// Adds the keys of a decoder that `config`, its part of the file, determines, all but tie_embeddings.
void read_decoder(const ConfigObject& config, const DecoderDefaults& defaults, ModelKeys& keys);
/// Adds the key of a head that may share the weights of the embedding, from the root of the file.
void read_tied(const ConfigObject& root, ModelKeys& keys);
/// Refuses what would make a model another one than the program computes: quantized weights, code of the
/// publisher, another activation than `activation`, options of attention.
void check_built(const ConfigObject& config, std::string_view activation);
/// `rope_parameters` of transformers 5, or `rope_scaling` of 4.
ConfigObject rope_of(const ConfigObject& config);

}  // namespace maestro::families
