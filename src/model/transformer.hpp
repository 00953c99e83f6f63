// A stack of pre-norm transformer layers in the Qwen3 form (RMSNorm on queries and keys, rotary positions,
// SwiGLU) over packed sequences, for vision and language models.
//
// Shape letters: T rows of this cp rank's slice, `local` of them held by this rank between the GEMMs
// (sequence parallelism, see language.hpp), C model width, H query heads, K KV heads and D channels a head.
// H, K and the MLP channels F are this tp rank's part.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/module.hpp"
#include "parallel/context_attention.hpp"
#include "parallel/sequence_parallel.hpp"

namespace maestro::model {

/// Activations of one layer that its backward pass reads. With Recompute::cheap, those marked (r) are absent
/// and are computed again.
struct LayerActivations {
    Tensor input;                              ///< [local, C]: the residual stream before the layer
    Tensor normed, rstd;                       ///< [local, C] (r), [local]
    Tensor qkv;                                ///< [T, (H + 2 K) D]
    Tensor head_rstd;                          ///< [T, H + K]
    Tensor attn_out;                           ///< [T, H D]: attention output, before the output projection
    parallel::AttentionActivations attention;  ///< its q and k (r), but for all-to-all
    Tensor residual;                           ///< [local, C]: the residual stream after attention
    Tensor mlp_normed, mlp_rstd;               ///< [local, C] (r), [local]
    Tensor gate_up, gated;                     ///< [T, 2 F], [T, F] (r), rows ordered by mlp_chunks()
};

struct StackActivations {
    std::vector<LayerActivations> layers;
    Tensor output;  ///< [local, C]: the residual stream after the last layer
};

class Transformer {
public:
    /// Declares the parameters "layers.N.*" of the role's stage in `store`, numbered within the model; each
    /// tp rank holds a part of the heads and of the MLP channels. Backend, mesh and store outlive the
    /// transformer.
    Transformer(backend::Backend& backend, const ModelSpec& spec, const Role& role,
                const parallel::Mesh& mesh, parallel::ParameterStore& store);

    /// Runs all layers on input[local, C], which lies in `saved` and must stay there until backward().
    /// Collective over the replica, like backward(). Where the role needs no backward pass nothing is saved:
    /// all memory comes from `scratch`, and the output remains valid until the caller releases it.
    StackActivations forward(const Tensor& input, const parallel::Sequences& sequences, backend::Arena& saved,
                             backend::Arena& scratch) const;
    /// Turns d_stream[local, C], the gradient of the output, into the gradient of the input, in place, and
    /// adds the gradients of the weights.
    void backward(StackActivations& activations, const parallel::Sequences& sequences, const Tensor& d_stream,
                  backend::Arena& scratch) const;

    /// Returns the stream that the stage before has delivered, as a tensor [local, C] in `arena`. inputs[i]
    /// has this rank's rows of sample i, which lie in the stream one sample after another.
    Tensor receive(std::span<const Tensor> inputs, std::int64_t local, backend::Arena& arena) const;
    /// Returns the output of a stage that is not the last one, in `saved`.
    Tensor send(const StackActivations& activations, backend::Arena& saved) const;

    /// Builds the device's attention plans for sequences of these lengths, in rows.
    void prepare(std::span<const std::int64_t> rows, parallel::AttentionMask mask, bool backward) const;

private:
    struct Layer {
        const parallel::Parameter *attention_norm, *qkv, *q_norm, *k_norm, *output, *mlp_norm, *gate_up,
            *down;
        int number;  ///< among the layers of the parameter store
    };
    /// Writes output[local, C] and returns the layer's activations, allocated in `saved`. With
    /// Recompute::cheap, `scratch` remains occupied by those that it does not return.
    LayerActivations layer_forward(const Layer& layer, const Tensor& input, const Tensor& output,
                                   const parallel::Sequences& sequences, backend::Arena& saved,
                                   backend::Arena& scratch) const;
    /// Writes output[local, C], the residual stream after the MLP, and the activations of the MLP in `a`,
    /// which are allocated already.
    void mlp_forward(const Layer& layer, const LayerActivations& a, const parallel::Sequences& sequences,
                     const Tensor& output, backend::Arena& scratch) const;
    /// The two branches of the backward pass: each adds the gradient of its branch to d_stream.
    void mlp_backward(const Layer& layer, const LayerActivations& a, const parallel::Sequences& sequences,
                      const Tensor& d_stream, backend::Arena& scratch) const;
    void attention_backward(const Layer& layer, const LayerActivations& a,
                            const parallel::Sequences& sequences, const Tensor& d_stream,
                            backend::Arena& scratch) const;
    /// The backward pass of a column-parallel linear layer: d_input[local, C] from d_output[T, columns of
    /// this rank], and the gradient of the weight. T rows are in the order of the chunks.
    void column_parallel_backward(const Tensor& d_output, const parallel::Parameter& weight,
                                  const Tensor& input, const Tensor& d_input,
                                  std::span<const parallel::RowChunk> chunks, backend::Arena& scratch) const;
    /// The backward pass of a row-parallel linear layer: d_input[T, channels of this rank] from
    /// d_output[local, C], and the gradient of the weight. T rows are in the order of the chunks.
    void row_parallel_backward(const Tensor& d_output, const parallel::Parameter& weight, const Tensor& input,
                               const Tensor& d_input, std::span<const parallel::RowChunk> chunks,
                               backend::Arena& scratch) const;
    /// The chunks in which the MLP handles the rows, which it does not mix. [T, ...] tensors of the MLP have
    /// their order.
    std::vector<parallel::RowChunk> mlp_chunks(const parallel::Sequences& sequences) const;
    /// All rows in their order.
    std::vector<parallel::RowChunk> one_chunk(const parallel::Sequences& sequences) const;

    backend::Backend& backend_;
    const parallel::ParameterStore& store_;
    ModelSpec spec_;
    DType type_;
    /// Returns the queries and keys of the layer, computed again where they were not saved.
    parallel::AttentionActivations restored_attention(const Layer& layer, const LayerActivations& a,
                                                      const parallel::Sequences& sequences,
                                                      backend::Arena& scratch) const;
    /// Returns `normed`, the norm of x, computed again where it was not saved.
    Tensor restored_norm(const Tensor& normed, const Tensor& x, const parallel::Parameter& weight,
                         const Tensor& rstd, backend::Arena& scratch) const;

    /// What a forward pass keeps: nothing, the input of each layer (activation checkpointing: backward runs
    /// the layer again), what takes long to compute again (selective checkpointing), or all activations.
    enum class Checkpointing { keep_nothing, keep_layer_inputs, keep_costly, keep_all } checkpointing_;
    TpOverlap tp_overlap_;
    bool trained_;
    std::int64_t heads_, kv_heads_, mlp_;  ///< of this tp rank
    parallel::SequenceParallel sequence_parallel_;
    parallel::ContextAttention attention_;
    std::vector<Layer> layers_;
};

}  // namespace maestro::model
