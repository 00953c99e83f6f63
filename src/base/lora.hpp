// LoRA: low-rank adapters of the linear layers of a section, whose weights are frozen (Hu et al., "LoRA:
// low-rank adaptation of large language models", ICLR 2022). Names are those of Hugging Face PEFT.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace maestro {

/// The linear layers that can have an adapter, in the order in which a layer uses them.
inline constexpr std::array<std::string_view, 7> kLoraTargets = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                                                 "gate_proj", "up_proj", "down_proj"};

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
