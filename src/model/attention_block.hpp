// The first half of a transformer layer: norm, projection to queries, keys and values, norm of each head
// (where the form has one) and rotary positions, attention, output projection, and the residual connection.
//
// Shape letters as in transformer.hpp.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/kv_cache.hpp"
#include "model/norm.hpp"
#include "parallel/context_attention.hpp"
#include "parallel/parallel_linear.hpp"

namespace maestro::model {

/// What the backward pass reads. With Recompute::cheap, those marked (r) are absent and are computed again.
struct AttentionBlockActivations {
    Tensor input;                              ///< [local, C]: the residual stream
    Tensor normed;                             ///< [local, C] (r)
    Norm::Statistics norm;                     ///< [local]
    Tensor qkv;                                ///< [T, (H + 2 K) D]
    Tensor head_rstd;                          ///< [T, H + K]; absent without a norm of heads
    Tensor attn_out;                           ///< [T, H D]: attention output, before the output projection
    parallel::AttentionActivations attention;  ///< its q and k (r), but for all-to-all
};

/// What the layers of one form read of a micro-batch.
struct AttentionBlockTables {
    Tensor cos, sin;  ///< [T, D / 2]: of the rotary positions
    parallel::ContextMasks masks;
};

class AttentionBlock {
public:
    using Activations = AttentionBlockActivations;
    using Tables = AttentionBlockTables;
    using State = KvCache;

    /// Declares "PREFIXattention.*" in `store`; each tp rank holds a part of the heads. Backend, mesh and
    /// store outlive the block.
    AttentionBlock(backend::Backend& backend, const ModelSpec& spec, const Role& role,
                   const parallel::Mesh& mesh, parallel::ParameterStore& store, const std::string& prefix,
                   const AttentionForm& form);

    /// Makes what all layers of this form read of a micro-batch, in `kept`. It must not be moved between its
    /// first use and the last one. positions[axis][slice row]: see ModelKind::rotary.
    AttentionBlockTables tables(const parallel::Sequences& sequences,
                                std::span<const std::vector<std::int32_t>> positions, backend::Arena& kept,
                                backend::Arena& scratch) const;
    /// Allocates what backward() reads in `saved`, and what it may compute again in `passing`.
    AttentionBlockActivations allocate(const Tensor& input, const parallel::Sequences& sequences,
                                       backend::Arena& saved, backend::Arena& passing) const;
    /// output[local, C] = the residual stream a.input and what attention adds to it. Collective over the
    /// replica, like backward().
    void forward(AttentionBlockActivations& a, const Tensor& output, const parallel::Sequences& sequences,
                 const AttentionBlockTables& tables, backend::Arena& scratch) const;
    /// Removes what backward() computes again.
    void discard_cheap(AttentionBlockActivations& a) const;
    /// Adds the gradient of the branch to d_stream[local, C], the gradient of the output, and adds the
    /// gradients of the weights.
    void backward(const AttentionBlockActivations& a, const Tensor& d_stream,
                  const parallel::Sequences& sequences, const AttentionBlockTables& tables,
                  backend::Arena& scratch) const;

    /// Builds the device's attention plans for micro-batches of up to `sequences` sequences of these lengths,
    /// in rows.
    void prepare(std::span<const std::int64_t> rows, std::int64_t sequences, parallel::AttentionMask mask,
                 bool backward) const;

    // Decoding (decode.cpp).
    /// Returns the state of so many layers of this form, without rows and with room for `rows`, in `arena`.
    KvCache make_state(std::int64_t layers, std::int64_t rows, backend::Arena& arena) const;
    /// Adds the first `rows` rows, of which forward() has computed `a`, to layer `layer` of the state.
    void record(const AttentionBlockActivations& a, std::int64_t rows, std::int64_t layer,
                KvCache& cache) const;
    /// As forward(), for one row that follows those of layer `layer` of the state, to which it is added.
    void decode(AttentionBlockActivations& a, const Tensor& output, const parallel::Sequences& sequences,
                const AttentionBlockTables& tables, std::int64_t layer, KvCache& cache,
                backend::Arena& scratch) const;

private:
    struct Weights {
        const parallel::Parameter *qkv, *output;
        const parallel::Parameter *qkv_bias = nullptr, *output_bias = nullptr, *q_norm = nullptr,
                                  *k_norm = nullptr;  ///< null: none
        std::optional<parallel::LowRankAdapter> qkv_adapter = {}, output_adapter = {};
    };
    Weights declare(parallel::ParameterStore& store, const Role& role, const parallel::Mesh& mesh,
                    const std::string& prefix) const;
    /// Writes the queries and keys q[T, H D] and k[T, K D].
    void make_queries_and_keys(const AttentionBlockActivations& a, const AttentionBlockTables& tables,
                               const Tensor& q, const Tensor& k) const;
    /// Returns the queries and keys, computed again where they were not saved.
    parallel::AttentionActivations restored_attention(const AttentionBlockActivations& a,
                                                      const AttentionBlockTables& tables,
                                                      backend::Arena& scratch) const;

    backend::Backend& backend_;
    const parallel::Mesh* mesh_;
    ModelSpec spec_;
    AttentionForm form_;
    RotaryPairs rotary_;
    DType type_;
    bool backward_;                  ///< whether the role has a backward pass
    std::int64_t heads_, kv_heads_;  ///< of this tp rank
    parallel::SequenceParallel sequence_parallel_;
    parallel::ContextAttention attention_;
    Norm norm_;
    Weights weights_;
    parallel::ColumnParallelLinear qkv_;
    parallel::RowParallelLinear output_;
};

}  // namespace maestro::model
