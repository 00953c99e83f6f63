// A stack of pre-norm transformer layers in the Qwen3 form, over packed sequences; shared by vision and
// language. T rows, C width.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/module.hpp"

namespace maestro::model {

/// Sequence borders (host) and rotation tables of one micro-batch.
struct Sequences {
    std::vector<std::int32_t> offsets;  ///< S + 1
    Tensor cos, sin;                    ///< [T, head_dim / 2]
};

/// Activations of one layer that backward reads.
struct LayerActivations {
    Tensor input;                                           ///< [T, C]
    Tensor normed, rstd, qkv, q, k, head_rstd, mixed, lse;  ///< attention
    Tensor middle;                                          ///< residual stream after attention
    Tensor mlp_normed, mlp_rstd, gate_up, gated;
};

struct StackActivations {
    std::vector<LayerActivations> layers;
    Tensor output;  ///< the residual stream after the last layer, [T, C]
};

class Transformer {
public:
    /// Declares its parameters under "layers.N.". The store must outlive it.
    Transformer(backend::Backend& backend, const ModelSpec& spec, const Role& role, bool causal,
                ParameterStore& store);

    /// input [T, C] must live in `saved`.
    StackActivations forward(const Tensor& input, const Sequences& sequences, backend::Arena& saved,
                             backend::Arena& scratch) const;
    /// Turns d_stream, the gradient of the output, into that of the input, in place.
    void backward(StackActivations& activations, const Sequences& sequences, const Tensor& d_stream,
                  backend::Arena& scratch) const;

private:
    struct Layer {
        const Parameter *attention_norm, *qkv, *q_norm, *k_norm, *output, *mlp_norm, *gate_up, *down;
    };
    LayerActivations run(const Layer& layer, const Tensor& input, const Tensor& output,
                         const Sequences& sequences, backend::Arena& saved, backend::Arena& scratch) const;
    void run_back(const Layer& layer, const LayerActivations& a, const Sequences& sequences,
                  const Tensor& d_stream, backend::Arena& scratch) const;

    backend::Backend& backend_;
    ModelSpec spec_;
    DType type_;
    bool causal_;
    bool recompute_;
    bool trained_;
    std::vector<Layer> layers_;
};

}  // namespace maestro::model
