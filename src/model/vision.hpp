// The vision encoder (its tp ranks share out heads, and the merger's channels): patches of any picture size,
// transformer layers with 2-D rotary positions and attention within the picture, merge x merge patches to one
// token, and a projector to the language model's width.
#pragma once

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
    void prepare(std::span<const std::int64_t> rows) override {
        layers_.prepare(rows, parallel::AttentionMask::bidirectional, role_.needs_backward);
    }

private:
    struct State;
    backend::Backend& backend_;
    ModelSpec spec_;
    Role role_;
    parallel::SequenceParallel sequence_parallel_;
    const parallel::Parameter *patch_weight_, *patch_bias_;
    Transformer layers_;
    const parallel::Parameter *norm_, *merge_weight_, *merge_bias_, *project_weight_, *project_bias_;
};

}  // namespace maestro::model
