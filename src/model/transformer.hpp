// A stack of pre-norm transformer layers in the Qwen3 form, over packed sequences; shared by vision and
// language. C width.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/module.hpp"
#include "parallel/context_attention.hpp"
#include "parallel/row_shares.hpp"

namespace maestro::model {

/// Activations of one layer that backward reads. T rows of the slice, own of them this rank's.
struct LayerActivations {
    Tensor input;                  ///< [own, C]
    Tensor normed, rstd;           ///< [own, C], [own]
    Tensor qkv, head_rstd, mixed;  ///< [T, some heads]
    parallel::AttentionActivations attention;
    Tensor middle;                ///< residual stream after attention, [own, C]
    Tensor mlp_normed, mlp_rstd;  ///< [own, C], [own]
    Tensor gate_up, gated;        ///< [T, some channels]
};

struct StackActivations {
    std::vector<LayerActivations> layers;
    Tensor output;  ///< the residual stream after the last layer, [own, C]
};

class Transformer {
public:
    /// Declares its parameters under "layers.N.": heads and MLP channels are shared out over the tp ranks.
    /// Store and peers must outlive it.
    Transformer(backend::Backend& backend, const ModelSpec& spec, const Role& role,
                const parallel::Peers& peers, parallel::ParameterStore& store);

    /// input [own, C] must live in `saved`. Collective over the peers, as backward.
    StackActivations forward(const Tensor& input, const parallel::Sequences& sequences, backend::Arena& saved,
                             backend::Arena& scratch) const;
    /// Turns d_stream, the gradient of the output, into that of the input, in place.
    void backward(StackActivations& activations, const parallel::Sequences& sequences, const Tensor& d_stream,
                  backend::Arena& scratch) const;

    /// The device's plans for sequences of so many rows.
    void prepare(std::span<const std::int64_t> rows, parallel::Attention attention, bool backward) const;

private:
    struct Layer {
        const parallel::Parameter *attention_norm, *qkv, *q_norm, *k_norm, *output, *mlp_norm, *gate_up,
            *down;
    };
    LayerActivations run(const Layer& layer, const Tensor& input, const Tensor& output,
                         const parallel::Sequences& sequences, backend::Arena& saved,
                         backend::Arena& scratch) const;
    void run_back(const Layer& layer, const LayerActivations& a, const parallel::Sequences& sequences,
                  const Tensor& d_stream, backend::Arena& scratch) const;

    backend::Backend& backend_;
    ModelSpec spec_;
    DType type_;
    bool recompute_;
    bool trained_;
    std::int64_t heads_, key_heads_, mlp_;  ///< of this rank
    parallel::RowShares shares_;
    parallel::ContextAttention attention_;
    std::vector<Layer> layers_;
};

}  // namespace maestro::model
