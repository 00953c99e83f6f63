// The second half of a transformer layer, which is either of two: an MLP, or experts.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "model/expert_block.hpp"
#include "model/mlp_block.hpp"

namespace maestro::model {

/// Of the block that made them.
using FeedForwardActivations = std::variant<MlpBlockActivations, ExpertBlockActivations>;

/// The interface of both blocks, see MlpBlock.
class FeedForward {
public:
    /// The block of layer `layer` of the model.
    FeedForward(backend::Backend& backend, const ModelSpec& spec, const Role& role,
                const parallel::Mesh& mesh, parallel::ParameterStore& store, const std::string& prefix,
                int layer)
        : block_(make(backend, spec, role, mesh, store, prefix, layer)) {}

    FeedForwardActivations allocate(const Tensor& input, const parallel::Sequences& sequences,
                                    backend::Arena& saved, backend::Arena& passing) const {
        return std::visit(
            [&](const auto& block) -> FeedForwardActivations {
                return block.allocate(input, sequences, saved, passing);
            },
            block_);
    }
    void forward(const FeedForwardActivations& a, const Tensor& output, const parallel::Sequences& sequences,
                 backend::Arena& scratch) const {
        with(a, [&](const auto& block, const auto& of) { block.forward(of, output, sequences, scratch); });
    }
    void discard_cheap(FeedForwardActivations& a) const {
        with(a, [&](const auto& block, auto& of) { block.discard_cheap(of); });
    }
    void backward(const FeedForwardActivations& a, const Tensor& d_stream,
                  const parallel::Sequences& sequences, backend::Arena& scratch) const {
        with(a, [&](const auto& block, const auto& of) { block.backward(of, d_stream, sequences, scratch); });
    }

    /// See ExpertBlock; none without experts.
    HostBytes host_bytes(const parallel::Sequences& sequences) const {
        const auto* experts = std::get_if<ExpertBlock>(&block_);
        return experts ? experts->host_bytes(sequences) : HostBytes{};
    }
    /// How often each expert was chosen since the last call; nothing without experts.
    std::optional<ExpertLoad> take_load(int layer) const {
        const auto* experts = std::get_if<ExpertBlock>(&block_);
        return experts ? std::optional(experts->take_load(layer)) : std::nullopt;
    }

private:
    using Block = std::variant<MlpBlock, ExpertBlock>;
    static Block make(backend::Backend& backend, const ModelSpec& spec, const Role& role,
                      const parallel::Mesh& mesh, parallel::ParameterStore& store, const std::string& prefix,
                      int layer) {
        if (spec.experts.in_layer(layer)) return ExpertBlock(backend, spec, role, mesh, store, prefix);
        return MlpBlock(backend, spec, role, mesh, store, prefix);
    }
    template <class Activations, class Call>
    void with(Activations& a, Call&& call) const {
        if (const auto* mlp = std::get_if<MlpBlock>(&block_))
            call(*mlp, std::get<MlpBlockActivations>(a));
        else
            call(std::get<ExpertBlock>(block_), std::get<ExpertBlockActivations>(a));
    }

    Block block_;
};

}  // namespace maestro::model
