// The vision encoder: patches of pictures of any size, with a learned position where the model has a table of
// them, transformer layers with 2-D rotary positions and attention within each picture, and a merger that
// turns merge x merge patches into one token of the language model (the form of Qwen2-VL's encoder). The tp
// ranks share the heads and the merger's channels.
//
// With DeepStack (Qwen3-VL), mergers of some inner layers' outputs give the language model further rows for
// each token. A row of the output then has the token's embedding and behind it those of the inner layers.
//
// A pipeline stage has some of the layers (Role::stage); the first one also cuts the pictures into patches,
// the last one merges. An encoder with DeepStack has one stage.
//
// Shape letters: P patches of a slice, `local` of them on this rank; C encoder width; O output width.
#pragma once

#include <optional>

#include "model/patch_merger.hpp"
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
    /// state.patches[local, patch_columns_]: this rank's patches, cut from the pictures.
    void cut_patches(const PackedPictures& packed, State& state, backend::Arena& kept,
                     backend::Arena& scratch) const;
    /// Makes the tables of the layers.
    void make_tables(const PackedPictures& packed, State& state, backend::Arena& kept,
                     backend::Arena& scratch) const;
    /// Returns the embeddings of the patches [local, C], with their learned positions.
    Tensor embed(const PackedPictures& packed, State& state, backend::Arena& kept,
                 backend::Arena& scratch) const;
    /// Its backward pass, which ends here: pixels have no gradient.
    void embed_backward(const State& state, const Tensor& d_stream, backend::Arena& scratch) const;
    /// One merger of the model and its layer in the parameter store.
    struct Merger {
        int layer;
        PatchMerger merger;
    };
    /// Columns [column, column + O) of output[tokens, output width] from stream[local, C].
    void merge(const Merger& merger, State& state, const Tensor& stream, std::int64_t column,
               const Tensor& output, backend::Arena& kept, backend::Arena& scratch) const;
    /// d_stream[local, C] (+)= the gradient of the merger's input. `a`: what the merger kept.
    void merge_backward(const Merger& merger, const PatchMergerActivations& a, const State& state,
                        const Tensor& d_output, std::int64_t column, const Tensor& d_stream, bool accumulate,
                        backend::Arena& scratch) const;
    /// The place of a layer among those of DeepStack, or -1.
    int deepstack_of(int layer) const;

    backend::Backend& backend_;
    ModelSpec spec_;
    Role role_;
    Units units_;
    std::int64_t patches_per_token_;                         ///< merge^2
    std::int64_t patch_columns_;                             ///< values of a patch
    std::int64_t width_;                                     ///< O: of a token in the language model
    const parallel::Parameter *patch_weight_, *patch_bias_;  ///< null after the first stage
    const parallel::Parameter* positions_;                   ///< [S, C]; null: none
    std::vector<Merger> deepstack_;
    Transformer layers_;
    std::optional<Merger> merger_;  ///< none before the last stage
};

}  // namespace maestro::model
