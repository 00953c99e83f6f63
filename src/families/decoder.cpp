#include "families/decoder.hpp"

#include <fmt/format.h>

namespace maestro::families {

namespace {

void read_rope(const ConfigObject& config, double theta, ModelKeys& keys) {
    const ConfigObject rope = rope_of(config);
    if (theta == 0 && !rope.find("rope_theta") && !config.find("rope_theta"))
        config.refuse("rope_theta", "is missing");
    keys["rope_theta"] = text_of(rope.number("rope_theta", config.number("rope_theta", theta)));
    const std::string type = rope.text("rope_type", rope.text("type", "default"));
    if (type == "default") return;
    if (type != "llama3")
        rope.refuse("rope_type", fmt::format("'{}' is not built; allowed: default, llama3", type));
    for (const auto& [key, name] : {std::pair{"factor", "rope_factor"},
                                    {"low_freq_factor", "rope_low_frequency_factor"},
                                    {"high_freq_factor", "rope_high_frequency_factor"},
                                    {"original_max_position_embeddings", "rope_original_length"}}) {
        if (!rope.find(key)) rope.refuse(key, "is missing");
        keys[name] = text_of(rope.number(key, 0));
    }
}

/// A window that is at least as long as a sequence is full attention (the deck checks it: attention_window).
void read_window(const ConfigObject& config, std::int64_t otherwise, ModelKeys& keys) {
    if (otherwise == 0 || (config.has("sliding_window") && !config.find("sliding_window"))) return;
    keys["attention_window"] = std::to_string(config.count("sliding_window", otherwise));
}

std::int64_t kv_heads_of(const ConfigObject& config, std::int64_t heads, std::int64_t otherwise) {
    const bool null = config.has("num_key_value_heads") && !config.find("num_key_value_heads");
    return config.count("num_key_value_heads", null || otherwise == 0 ? heads : otherwise);
}

}  // namespace

ConfigObject rope_of(const ConfigObject& config) {
    return config.object(config.find("rope_parameters") ? "rope_parameters" : "rope_scaling");
}

void check_built(const ConfigObject& config, std::string_view activation) {
    if (config.find("quantization_config"))
        config.refuse("quantization_config", "quantized weights are not built; use the unquantized model");
    if (config.find("auto_map")) config.refuse("auto_map", "a model with code of its publisher is not built");
    if (const std::string act = config.text("hidden_act", std::string(activation)); act != activation)
        config.refuse("hidden_act", fmt::format("'{}' is not built; allowed: {}", act, activation));
    for (const char* key : {"attention_bias", "mlp_bias", "use_sliding_window"})
        if (config.flag(key, false)) config.refuse(key, "true is not built; allowed: false");
    if (config.number("attention_dropout", 0) != 0)
        config.refuse("attention_dropout", "dropout is not built; allowed: 0");
    if (const ConfigObject::Json* const types = config.find("layer_types"))
        for (const ConfigObject::Json& type : *types)
            if (type != "full_attention")
                config.refuse("layer_types",
                              fmt::format("{} is not built; allowed: \"full_attention\"", type.dump()));
}

void read_decoder(const ConfigObject& config, const DecoderDefaults& defaults, ModelKeys& keys) {
    check_built(config, "silu");
    const std::int64_t heads = config.count("num_attention_heads"), width = config.count("hidden_size");
    keys["width"] = std::to_string(width);
    keys["heads"] = std::to_string(heads);
    keys["layers"] = std::to_string(config.count("num_hidden_layers"));
    keys["kv_heads"] = std::to_string(kv_heads_of(config, heads, defaults.kv_heads));
    keys["head_dim"] =
        std::to_string(config.count("head_dim", defaults.head_dim > 0 ? defaults.head_dim : width / heads));
    keys["mlp"] = std::to_string(config.count("intermediate_size"));
    keys["vocabulary"] = std::to_string(config.count("vocab_size"));
    keys["norm_eps"] = text_of(config.number("rms_norm_eps", 1e-6));
    read_rope(config, defaults.rope_theta, keys);
    read_window(config, defaults.window, keys);
}

void read_tied(const ConfigObject& root, ModelKeys& keys) {
    keys["tie_embeddings"] = root.flag("tie_word_embeddings", false) ? "true" : "false";
}

}  // namespace maestro::families
