// config.json, as transformers 4 and 5 write it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "families/family.hpp"
#include "families/json_text.hpp"

namespace maestro::families {

namespace {

using Json = nlohmann::json;

/// A message with texts of the file, which may be hostile: in ASCII if it is long, without control
/// characters, and the middle left out.
std::string readable(std::string message) {
    constexpr std::size_t kBefore = 200, kAfter = 100;
    const bool is_long = message.size() > kBefore + kAfter;
    if (is_long) message = message.substr(0, kBefore) + "..." + message.substr(message.size() - kAfter);
    for (char& c : message)
        if (static_cast<unsigned char>(c) < ' ' || c == '\x7f' || (is_long && (c & 0x80) != 0)) c = '?';
    return message;
}

/// Members of an object of the file, with errors that name the file and the key.
class Object {
public:
    Object(const Json& members, std::string path, std::string prefix = "")
        : members_(members), path_(std::move(path)), prefix_(std::move(prefix)) {}

    [[noreturn]] void refuse(std::string_view key, const std::string& what) const {
        throw Error(ExitCode::bad_data, fmt::format("{}: {}{}: {}", path_, prefix_, key, readable(what)),
                    Scope::all_ranks);
    }
    /// Null where it is missing, or null in the file.
    const Json* find(const std::string& key) const {
        const auto at = members_.find(key);
        return at == members_.end() || at->is_null() ? nullptr : &*at;
    }
    std::string text(const std::string& key, const std::string& otherwise) const {
        const Json* value = find(key);
        if (!value) return otherwise;
        if (!value->is_string()) refuse(key, "has to be a text");
        return value->get<std::string>();
    }
    bool flag(const std::string& key, bool otherwise) const {
        const Json* value = find(key);
        if (!value) return otherwise;
        if (!value->is_boolean()) refuse(key, "has to be true or false");
        return value->get<bool>();
    }
    double number(const std::string& key, double otherwise) const {
        const Json* value = find(key);
        if (!value) return otherwise;
        if (!value->is_number()) refuse(key, "has to be a number");
        return value->get<double>();
    }
    std::int64_t count(const std::string& key) const {
        if (!find(key)) refuse(key, "is missing; take the config.json that the model was published with");
        return count(key, 0);
    }
    std::int64_t count(const std::string& key, std::int64_t otherwise) const {
        const Json* value = find(key);
        if (!value) return otherwise;
        if (!value->is_number_unsigned() || value->get<std::uint64_t>() - 1 >= std::uint64_t{1} << 31)
            refuse(key, "has to be a whole number from 1 on");
        return value->get<std::int64_t>();
    }
    Object object(const std::string& key) const {
        const Json* value = find(key);
        if (!value) return {Json::object(), path_, prefix_ + key + "."};
        if (!value->is_object()) refuse(key, "has to be an object");
        return {*value, path_, prefix_ + key + "."};
    }
    const Json& members() const { return members_; }

private:
    Json members_;
    std::string path_, prefix_;
};

/// Refuses what would make the model another one than Maestro computes.
void check_built(const Object& config, std::string_view activation) {
    if (config.find("quantization_config"))
        config.refuse("quantization_config", "quantized weights are not built; use the unquantized model");
    if (config.find("auto_map")) config.refuse("auto_map", "a model with code of its publisher is not built");
    if (const std::string act = config.text("hidden_act", std::string(activation)); act != activation)
        config.refuse("hidden_act", fmt::format("'{}' is not built; allowed: {}", act, activation));
    for (const char* key : {"attention_bias", "mlp_bias", "use_sliding_window"})
        if (config.flag(key, false)) config.refuse(key, "true is not built; allowed: false");
    if (config.number("attention_dropout", 0) != 0)
        config.refuse("attention_dropout", "dropout is not built; allowed: 0");
    if (const Json* types = config.find("layer_types"))
        for (const Json& type : *types)
            if (type != "full_attention")
                config.refuse("layer_types",
                              fmt::format("{} is not built; allowed: \"full_attention\"", type.dump()));
}

std::string text_of(double value) {
    return fmt::format("{}", value);
}

/// The member, a list of whole numbers, as text.
std::string list_of(const Object& object, const std::string& key) {
    const Json* const list = object.find(key);
    if (!list) object.refuse(key, "is missing");
    const auto fits = [](const Json& n) { return n.is_number_unsigned() && n.get<std::uint64_t>() <= 1000; };
    if (!list->is_array() || list->size() > 1000 || !std::all_of(list->begin(), list->end(), fits))
        object.refuse(key, "has to be a list of whole numbers");
    return list->dump();
}

/// `rope_parameters` of transformers 5, or `rope_theta` and `rope_scaling` of 4.
void read_rope(const Object& config, ModelKeys& keys) {
    const Object rope = config.object(config.find("rope_parameters") ? "rope_parameters" : "rope_scaling");
    keys["rope_theta"] = text_of(rope.number("rope_theta", config.number("rope_theta", 10000)));
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

/// By which positions the pairs of channels rotate (Qwen3-VL).
void read_rope_sections(const Object& config, ModelKeys& keys) {
    const Object rope = config.object(config.find("rope_parameters") ? "rope_parameters" : "rope_scaling");
    if (!rope.flag("mrope_interleaved", false))
        rope.refuse("mrope_interleaved", "false is not built; allowed: true");
    keys["rope_sections"] = list_of(rope, "mrope_section");
}

/// How many layers have an MLP instead of experts: the first ones, of `layers`.
std::int64_t dense_layers_of(const Object& config, std::int64_t layers) {
    constexpr std::int64_t kMostLayers = 1000;  // further ones are refused when the deck is read
    const std::int64_t step = config.count("decoder_sparse_step", 1);
    std::vector<std::int64_t> listed;
    if (config.find("mlp_only_layers")) {
        list_of(config, "mlp_only_layers");
        listed = config.find("mlp_only_layers")->get<std::vector<std::int64_t>>();
    }
    std::int64_t dense = 0;
    for (std::int64_t n = 0; n < std::min(layers, kMostLayers); ++n) {
        const bool is_listed = std::find(listed.begin(), listed.end(), n) != listed.end();
        if (!is_listed && (n + 1) % step == 0) continue;
        if (n != dense++)
            config.refuse(is_listed ? "mlp_only_layers" : "decoder_sparse_step",
                          fmt::format("layer {} without experts, behind one that has them, is not built; "
                                      "allowed: the first layers",
                                      n));
    }
    if (dense == layers)
        config.refuse(step > 1 ? "decoder_sparse_step" : "mlp_only_layers", "leaves no layer with experts");
    return dense;
}

/// The keys of the experts of Qwen3-MoE.
void read_experts(const Object& config, std::int64_t layers, ModelKeys& keys) {
    if (config.flag("output_router_logits", false))
        config.refuse("output_router_logits", "a loss of the router is not built; allowed: false");
    if (config.number("router_jitter_noise", 0) != 0)
        config.refuse("router_jitter_noise", "noise is not built; allowed: 0");
    // transformers 5 writes the second name.
    const bool local = config.find("num_local_experts") != nullptr;
    const std::int64_t experts = config.count(local ? "num_local_experts" : "num_experts");
    if (config.count("num_experts", experts) != experts)
        config.refuse("num_experts", "is unlike num_local_experts; remove one of the two");
    const std::int64_t dense = dense_layers_of(config, layers);
    keys["experts"] = std::to_string(experts);
    keys["experts_per_token"] = std::to_string(config.count("num_experts_per_tok"));
    keys["expert_mlp"] = std::to_string(config.count("moe_intermediate_size"));
    keys["shared_expert_mlp"] = "0";
    keys["dense_layers"] = std::to_string(dense);
    keys["router"] = "softmax";
    keys["router_normalize"] = config.flag("norm_topk_prob", false) ? "true" : "false";
    if (dense == 0) keys.erase("mlp");  // the file has it all the same
}

/// The keys of a language model, from `config`, its part of the file.
void read_language(const Object& config, const Family& family, bool tied, ModelKeys& keys) {
    check_built(config, "silu");
    const std::int64_t heads = config.count("num_attention_heads"), width = config.count("hidden_size");
    keys["width"] = std::to_string(width);
    keys["heads"] = std::to_string(heads);
    const std::int64_t layers = config.count("num_hidden_layers");
    keys["layers"] = std::to_string(layers);
    keys["kv_heads"] = std::to_string(config.count("num_key_value_heads", heads));
    // For these two, transformers derives the default from the width.
    const bool derived = family.name == "llama" || family.name == "qwen3_moe";
    keys["head_dim"] = std::to_string(config.count("head_dim", derived ? width / heads : 128));
    keys["mlp"] = std::to_string(config.count("intermediate_size"));
    keys["vocabulary"] = std::to_string(config.count("vocab_size"));
    keys["norm_eps"] = text_of(config.number("rms_norm_eps", 1e-6));
    keys["tie_embeddings"] = tied ? "true" : "false";
    read_rope(config, keys);
    if (family.has_vision()) read_rope_sections(config, keys);
    if (family.name == "qwen3_moe") read_experts(config, layers, keys);
}

/// The keys of a vision model, from `config`, its part of the file.
void read_vision(const Object& config, ModelKeys& keys) {
    check_built(config, "gelu_pytorch_tanh");
    const std::int64_t heads = config.count("num_heads"), width = config.count("hidden_size"),
                       positions = config.count("num_position_embeddings");
    const auto side = static_cast<std::int64_t>(std::lround(std::sqrt(static_cast<double>(positions))));
    if (side * side != positions) config.refuse("num_position_embeddings", "has to be a square");
    if (config.count("temporal_patch_size", 2) != 2) config.refuse("temporal_patch_size", "only 2 is built");
    keys["width"] = std::to_string(width);
    keys["heads"] = keys["kv_heads"] = std::to_string(heads);
    keys["layers"] = std::to_string(config.count("depth"));
    keys["head_dim"] = std::to_string(width / heads);
    keys["mlp"] = std::to_string(config.count("intermediate_size"));
    keys["patch"] = std::to_string(config.count("patch_size"));
    keys["merge"] = std::to_string(config.count("spatial_merge_size"));
    keys["channels"] = std::to_string(config.count("in_channels", 3));
    keys["output_width"] = std::to_string(config.count("out_hidden_size"));
    keys["position_table"] = std::to_string(side);
    keys["deepstack"] = list_of(config, "deepstack_visual_indexes");
    const Object rope = config.object("rope_parameters");
    keys["rope_theta"] = text_of(rope.number("rope_theta", 10000));
    keys["norm_eps"] = "1e-06";
}

/// What every configuration has: an object of a family that is built.
std::pair<Object, const Family*> read_root(std::string_view text, const std::string& path) {
    const Object config(parse_object(text, path), path);
    const std::string type = config.text("model_type", "");
    if (type.empty()) config.refuse("model_type", "is missing; name the folder of a whole model");
    const Family* const family = find_family(type);
    if (!family || family->model_type.empty())
        config.refuse("model_type",
                      fmt::format("'{}' is not built; allowed: llama, qwen3, qwen3_moe, qwen3_vl", type));
    return {config, family};
}

}  // namespace

ModelKeys read_config(std::string_view text, const std::string& path, std::string_view kind) {
    const auto [config, family] = read_root(text, path);
    ModelKeys keys;
    keys["family"] = family->name;
    const bool vision = family->has_vision() && kind == "vision";
    keys["kind"] = vision ? "vision" : "language";
    if (vision) {
        check_built(config, "silu");
        read_vision(config.object("vision_config"), keys);
        return keys;
    }
    const bool tied = config.flag("tie_word_embeddings", false);
    if (family->has_vision()) {
        check_built(config, "silu");
        read_language(config.object("text_config"), *family, tied, keys);
        keys["picture_token"] = std::to_string(config.count("image_token_id", 151655));
    } else {
        read_language(config, *family, tied, keys);
    }
    return keys;
}

}  // namespace maestro::families
