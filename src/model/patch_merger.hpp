// Turns merge x merge patches into one token of the language model: a norm, and two linear layers with GELU
// between them (Qwen2-VL's patch merger). The tp ranks share the channels between the linear layers.
//
// Shape letters: P patches of a slice, `local` of them on this rank; C encoder width; M = merge^2 C; H
// channels between the linear layers, this rank's part of them; O output width.
#pragma once

#include <span>
#include <string>

#include "model/norm.hpp"
#include "ops/gelu.hpp"
#include "parallel/sequence_parallel.hpp"

namespace maestro::model {

/// What backward() reads.
struct PatchMergerActivations {
    Tensor input;   ///< [local, C]
    Tensor normed;  ///< of the input's form
    Norm::Statistics norm;
    Tensor merged, activated;  ///< [P / merge^2, H]: before and after GELU
};

class PatchMerger {
public:
    /// Over which rows the norm is taken: [local, C] of patches, or [local / merge^2, M] of tokens.
    enum class NormOf { patches, tokens };

    /// Declares "PREFIXnorm.*", "PREFIXmerger.*" and "PREFIXprojector.*" for O = `output_width`. Backend,
    /// mesh and store outlive the object.
    PatchMerger(backend::Backend& backend, const ModelSpec& spec, const Role& role,
                const parallel::Mesh& mesh, parallel::ParameterStore& store, const std::string& prefix,
                std::int64_t output_width, NormOf norm_of);

    /// output[local / merge^2, O] from input[local, C]. `tp_tokens`: tokens of each tp rank. The activations
    /// are allocated in `kept`. Collective over tp, like backward().
    PatchMergerActivations forward(const Tensor& input, const Tensor& output,
                                   std::span<const std::int64_t> tp_tokens, backend::Arena& kept,
                                   backend::Arena& scratch) const;
    /// d_input[local, C] (+)= the gradient of the input, and adds the gradients of the parameters.
    void backward(const PatchMergerActivations& a, const Tensor& d_output, const Tensor& d_input,
                  bool accumulate, std::span<const std::int64_t> tp_tokens, backend::Arena& scratch) const;

private:
    /// Views the rows of merge^2 patches as one row each. patchify() puts the patches of a token one after
    /// another, so that merging them copies nothing.
    Tensor as_tokens(const Tensor& patch_rows) const {
        return patch_rows.reshape({patch_rows.size() / merged_, merged_});
    }
    /// The rows that the norm is taken over.
    Tensor norm_rows(const Tensor& patch_rows) const {
        return norm_of_ == NormOf::tokens ? as_tokens(patch_rows) : patch_rows;
    }

    backend::Backend& backend_;
    DType type_;
    ops::GeluForm gelu_;
    NormOf norm_of_;
    std::int64_t merged_;  ///< M
    parallel::SequenceParallel sequence_parallel_;
    Norm norm_;
    const parallel::Parameter *up_, *up_bias_, *down_, *down_bias_;
};

}  // namespace maestro::model
