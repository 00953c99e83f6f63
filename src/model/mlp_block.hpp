// The second half of a transformer layer: norm, MLP (gated by SwiGLU, or with GELU), and the residual
// connection. X is 2 F with a gate, whose channels precede the others, or F without.
//
// Shape letters as in transformer.hpp.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/norm.hpp"
#include "parallel/parallel_linear.hpp"
#include "parallel/sequences.hpp"

namespace maestro::model {

/// What the backward pass reads. With Recompute::cheap, those marked (r) are absent and are computed again.
/// Rows [T, ...] have the order of MlpBlock::chunks().
struct MlpBlockActivations {
    Tensor input;              ///< [local, C]: the residual stream
    Tensor normed;             ///< [local, C] (r)
    Norm::Statistics norm;     ///< [local]
    Tensor hidden, activated;  ///< [T, X], [T, F] (r)
};

class MlpBlock {
public:
    /// Declares "PREFIXmlp.*" in `store`; each tp rank holds a part of the hidden channels. Backend, mesh and
    /// store outlive the block.
    MlpBlock(backend::Backend& backend, const ModelSpec& spec, const Role& role, const parallel::Mesh& mesh,
             parallel::ParameterStore& store, const std::string& prefix);

    /// Allocates what backward() reads in `saved`, and what it may compute again in `passing`.
    MlpBlockActivations allocate(const Tensor& input, const parallel::Sequences& sequences,
                                 backend::Arena& saved, backend::Arena& passing) const;
    /// output[local, C] = the residual stream a.input and what the MLP adds to it. Collective over tp, like
    /// backward().
    void forward(const MlpBlockActivations& a, const Tensor& output, const parallel::Sequences& sequences,
                 backend::Arena& scratch) const;
    /// Removes what backward() computes again.
    void discard_cheap(MlpBlockActivations& a) const { a.normed = a.activated = {}; }
    /// Adds the gradient of the branch to d_stream[local, C], the gradient of the output, and adds the
    /// gradients of the weights.
    void backward(const MlpBlockActivations& a, const Tensor& d_stream, const parallel::Sequences& sequences,
                  backend::Arena& scratch) const;

private:
    struct Weights {
        const parallel::Parameter *up, *down;
        const parallel::Parameter *up_bias = nullptr, *down_bias = nullptr;  ///< null: none
        std::optional<parallel::LowRankAdapter> up_adapter = {}, down_adapter = {};
    };
    Weights declare(parallel::ParameterStore& store, const Role& role, const parallel::Mesh& mesh,
                    const std::string& prefix) const;
    bool gated() const { return spec_.form.mlp == LayerForm::Mlp::swiglu; }
    void activate(const Tensor& hidden, const Tensor& activated) const;
    /// The chunks in which rows are exchanged and multiplied. The MLP does not mix rows, so their order does
    /// not matter.
    std::vector<parallel::RowChunk> chunks(const parallel::Sequences& sequences) const;

    backend::Backend& backend_;
    ModelSpec spec_;
    DType type_;
    TpOverlap tp_overlap_;
    std::int64_t mlp_;  ///< hidden channels of this tp rank
    parallel::SequenceParallel sequence_parallel_;
    Norm norm_;
    Weights weights_;
    parallel::ColumnParallelLinear up_;
    parallel::RowParallelLinear down_;
};

}  // namespace maestro::model
