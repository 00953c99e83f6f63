// What families of language models with experts share: the form of Qwen3-MoE.
#pragma once

#include "families/decoder.hpp"

namespace maestro::families {

inline constexpr std::array<TensorNames, 3> kExpertsLayer = {{
    {"mlp.router.weight", {{{"mlp.gate.weight"}}}},
    {"mlp.experts.gate_up.weight",
     {{{"gate_proj.weight", Rows::expert_mlp}, {"up_proj.weight", Rows::expert_mlp}}},
     TensorForm::experts,
     "mlp.experts.gate_up_proj"},
    {"mlp.experts.down.weight", {{{"down_proj.weight"}}}, TensorForm::experts, "mlp.experts.down_proj"},
}};

/// Adds the keys of experts, behind those of read_decoder(), from `config`, the language model's part of the
/// file.
void read_experts(const ConfigObject& config, ModelKeys& keys);

}  // namespace maestro::families
