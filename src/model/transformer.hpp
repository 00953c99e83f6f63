// A stack of pre-norm transformer layers in the Qwen3 form, over packed sequences, for vision and language. C
// is the width, T the rows of the slice, of which `local` are this rank's (see language.hpp).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/module.hpp"
#include "parallel/context_attention.hpp"
#include "parallel/sequence_parallel.hpp"

namespace maestro::model {

/// Activations of one layer that backward reads.
struct LayerActivations {
    Tensor input;                     ///< [local, C]
    Tensor normed, rstd;              ///< [local, C], [local]
    Tensor qkv, head_rstd, attn_out;  ///< [T, columns of this rank's heads]
    parallel::AttentionActivations attention;
    Tensor residual;              ///< residual stream after attention, [local, C]
    Tensor mlp_normed, mlp_rstd;  ///< [local, C], [local]
    Tensor gate_up, gated;        ///< [T, this rank's channels]
};

struct StackActivations {
    std::vector<LayerActivations> layers;
    Tensor output;  ///< the residual stream after the last layer, [local, C]
};

class Transformer {
public:
    /// Declares its parameters under "layers.N.": the tp ranks share heads and MLP channels. Store and mesh
    /// must outlive it.
    Transformer(backend::Backend& backend, const ModelSpec& spec, const Role& role,
                const parallel::Mesh& mesh, parallel::ParameterStore& store);

    /// input [local, C] lies in `saved`. Collective over the replica, as backward. Where the role needs no
    /// backward, nothing is kept: all memory is taken from `scratch`, and the output stays valid until the
    /// caller releases it.
    StackActivations forward(const Tensor& input, const parallel::Sequences& sequences, backend::Arena& saved,
                             backend::Arena& scratch) const;
    /// Turns d_stream, the gradient of the output, into that of the input, in place.
    void backward(StackActivations& activations, const parallel::Sequences& sequences, const Tensor& d_stream,
                  backend::Arena& scratch) const;

    /// The device's plans for sequences of so many rows.
    void prepare(std::span<const std::int64_t> rows, parallel::AttentionMask mask, bool backward) const;

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
    /// Of a forward: nothing, the inputs of the layers (which backward runs again), or all activations.
    enum class Keeps { nothing, inputs, all } keeps_;
    bool trained_;
    std::int64_t heads_, kv_heads_, mlp_;  ///< of this rank
    parallel::SequenceParallel sequence_parallel_;
    parallel::ContextAttention attention_;
    std::vector<Layer> layers_;
};

}  // namespace maestro::model
