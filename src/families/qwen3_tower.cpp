#include "families/qwen3_tower.hpp"

#include <cmath>

namespace maestro::families {

void read_tower(const ConfigObject& root, ModelKeys& keys) {
    check_built(root, "silu");
    const ConfigObject config = root.object("vision_config");
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
    keys["deepstack"] = config.list("deepstack_visual_indexes");
    const ConfigObject rope = config.object("rope_parameters");
    keys["rope_theta"] = text_of(rope.number("rope_theta", 10000));
    keys["norm_eps"] = "1e-06";
}

void read_beside_tower(const ConfigObject& root, const ConfigObject& text, ModelKeys& keys) {
    check_built(root, "silu");
    const ConfigObject rope = rope_of(text);
    if (!rope.flag("mrope_interleaved", false))
        rope.refuse("mrope_interleaved", "false is not built; allowed: true");
    keys["rope_sections"] = rope.list("mrope_section");
    keys["picture_token"] = std::to_string(root.count("image_token_id", 151655));
}

}  // namespace maestro::families
