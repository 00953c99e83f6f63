// LoRA: low-rank adapters of the linear layers of a section, whose weights are frozen (Hu et al., "LoRA:
// low-rank adaptation of large language models", ICLR 2022). Names are those of Hugging Face PEFT.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace maestro {

/// The linear layers that can have an adapter, in the order in which a layer uses them: first those of
/// language models and of this program's vision models, then those of the vision model of Qwen3-VL. The
/// latter have two words, because a merger has a `linear_fc1`, too, and PEFT compares the end of a name.
inline constexpr std::array<std::string_view, 11> kLoraTargets = {
    "q_proj",    "k_proj",   "v_proj",    "o_proj",         "gate_proj",     "up_proj",
    "down_proj", "attn.qkv", "attn.proj", "mlp.linear_fc1", "mlp.linear_fc2"};
/// Those of attention: with `fused_qkv`, it computes queries, keys and values by one matrix.
constexpr std::span<const std::string_view> attention_targets(bool fused_qkv) {
    const std::span<const std::string_view> all(kLoraTargets);
    return fused_qkv ? all.subspan(7, 2) : all.first(4);
}
/// Those of an MLP behind such attention.
constexpr std::span<const std::string_view> mlp_targets(bool fused_qkv) {
    const std::span<const std::string_view> all(kLoraTargets);
    return fused_qkv ? all.subspan(9, 2) : all.subspan(4, 3);
}

/// y = W x + (alpha / rank) B A x for each target, with A [rank, inputs] and B [outputs, rank].
struct Lora {
    int rank = 0;  ///< 0: no adapters
    double alpha = 0;
    std::vector<std::string> targets;  ///< of kLoraTargets, in their order

    bool enabled() const { return rank > 0; }
    double scale() const { return alpha / rank; }
    bool has(std::string_view target) const {
        return enabled() && std::find(targets.begin(), targets.end(), target) != targets.end();
    }
    bool operator==(const Lora&) const = default;
};

}  // namespace maestro
