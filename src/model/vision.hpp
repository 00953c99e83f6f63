// The vision encoder: patches of pictures of any size, transformer layers with 2-D rotary positions and
// attention within each picture, a merger that turns merge x merge patches into one token, and a projector to
// the language model's width (the form of Qwen2-VL's encoder). The tp ranks share the heads and the merger's
// channels.
//
// A pipeline stage has some of the layers (Role::stage); the first one also cuts the pictures into patches,
// the last one merges and projects.
//
// Shape letters: P patches of a slice, `local` of them on this rank; C encoder width; O output width.
#pragma once

#include <optional>

#include "base/rotary_pairs.hpp"
#include "model/norm.hpp"
#include "model/transformer.hpp"

namespace maestro::model {

class Vision final : public Module {
public:
    Vision(backend::Backend& backend, const ModelSpec& spec, const Role& role, parallel::Mesh mesh);
    std::unique_ptr<Saved> forward(const Batch& batch, std::span<const std::vector<Tensor>> inputs,
                                   backend::Arena& saved, backend::Arena& scratch, Tensor& output,
                                   Result& result) override;
    void backward(Saved& saved, const Tensor& d_output, std::span<const Tensor> d_inputs,
                  backend::Arena& scratch) override;
    std::vector<std::vector<std::int64_t>> input_rows(const Batch& batch) const override;
    void prepare(std::span<const std::int64_t> rows, std::int64_t sequences) override {
        layers_.prepare(rows, sequences, parallel::AttentionMask::bidirectional, role_.needs_backward);
    }

private:
    struct PackedPictures;
    struct State;
    /// Concatenates the patches of all pictures of the micro-batch.
    PackedPictures pack(const Batch& batch) const;
    /// From the packed patches to those of this rank.
    parallel::Sequences sequences_of(const PackedPictures& packed) const;
    /// state.patches[local, patch^2 * channels]: this rank's patches, cut from the pictures.
    void cut_patches(const PackedPictures& packed, State& state, backend::Arena& kept,
                     backend::Arena& scratch) const;
    /// Computes the rotary tables of the slice and copies its row numbers to the device.
    void set_positions(const PackedPictures& packed, State& state, backend::Arena& kept,
                       backend::Arena& scratch) const;
    /// output[local / merge^2, O] from state.normed[local, C]. Collective over tp.
    void merge_and_project(State& state, const Tensor& output, backend::Arena& kept,
                           backend::Arena& scratch) const;
    /// The backward pass of the final norm, the merger and the projector: d_stream[local, C], the gradient of
    /// the layers' output. Collective over tp.
    void merge_backward(State& state, const Tensor& d_output, const Tensor& d_stream,
                        backend::Arena& scratch) const;
    /// Views the rows of merge^2 patches as one row each. patchify() puts the patches of a token one after
    /// another, so that merging them copies nothing.
    Tensor as_tokens(const Tensor& patch_rows) const {
        return patch_rows.reshape({patch_rows.dim(0) / patches_per_token_, patches_per_token_ * spec_.width});
    }

    backend::Backend& backend_;
    ModelSpec spec_;
    Role role_;
    std::int64_t patches_per_token_;  ///< merge^2
    RotaryPairs rotary_;
    parallel::SequenceParallel sequence_parallel_;
    const parallel::Parameter *patch_weight_, *patch_bias_;  ///< null after the first stage
    Transformer layers_;
    /// Null before the last stage.
    int merger_layer_ = 0;  ///< in the parameter store
    std::optional<Norm> norm_;
    const parallel::Parameter *merge_weight_ = nullptr, *merge_bias_ = nullptr, *project_weight_ = nullptr,
                              *project_bias_ = nullptr;
};

}  // namespace maestro::model
