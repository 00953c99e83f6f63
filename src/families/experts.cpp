#include "families/experts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace maestro::families {

namespace {

/// How many layers have an MLP instead of experts: the first ones, of `layers`.
std::int64_t dense_layers_of(const ConfigObject& config, std::int64_t layers) {
    constexpr std::int64_t kMostLayers = 1000;  // further ones are refused when the deck is read
    const std::int64_t step = config.count("decoder_sparse_step", 1);
    std::vector<std::int64_t> listed;
    if (config.find("mlp_only_layers")) {
        config.list("mlp_only_layers");
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

}  // namespace

void read_experts(const ConfigObject& config, ModelKeys& keys) {
    if (config.flag("output_router_logits", false))
        config.refuse("output_router_logits", "a loss of the router is not built; allowed: false");
    if (config.number("router_jitter_noise", 0) != 0)
        config.refuse("router_jitter_noise", "noise is not built; allowed: 0");
    // transformers 5 writes the second name.
    const bool local = config.find("num_local_experts") != nullptr;
    const std::int64_t experts = config.count(local ? "num_local_experts" : "num_experts");
    if (config.count("num_experts", experts) != experts)
        config.refuse("num_experts", "is unlike num_local_experts; remove one of the two");
    const std::int64_t dense = dense_layers_of(config, config.count("num_hidden_layers"));
    keys["experts"] = std::to_string(experts);
    keys["experts_per_token"] = std::to_string(config.count("num_experts_per_tok"));
    keys["expert_mlp"] = std::to_string(config.count("moe_intermediate_size"));
    keys["shared_expert_mlp"] = "0";
    keys["dense_layers"] = std::to_string(dense);
    keys["router"] = "softmax";
    keys["router_normalize"] = config.flag("norm_topk_prob", false) ? "true" : "false";
    if (dense == 0) keys.erase("mlp");  // the file has it all the same
}

}  // namespace maestro::families
