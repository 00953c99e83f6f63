// The first half of a transformer layer, which mixes the rows of each sequence. A further kind is a further
// alternative of each variant here: a block with the interface of AttentionBlock, and a form of its sizes
// (spec/mixer_form.hpp).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "model/attention_block.hpp"

namespace maestro::model {

// Each of the block that made it.
using MixerActivations = std::variant<AttentionBlock::Activations>;
using MixerTables = std::variant<AttentionBlock::Tables>;
using MixerState = std::variant<AttentionBlock::State>;

/// The interface of all blocks, see AttentionBlock.
class Mixer {
public:
    Mixer(backend::Backend& backend, const ModelSpec& spec, const Role& role, const parallel::Mesh& mesh,
          parallel::ParameterStore& store, const std::string& prefix, const MixerForm& form)
        : block_(make(backend, spec, role, mesh, store, prefix, form)) {}

    MixerTables tables(const parallel::Sequences& sequences,
                       std::span<const std::vector<std::int32_t>> positions, backend::Arena& kept,
                       backend::Arena& scratch) const {
        return std::visit(
            [&](const auto& block) -> MixerTables {
                return block.tables(sequences, positions, kept, scratch);
            },
            block_);
    }
    MixerActivations allocate(const Tensor& input, const parallel::Sequences& sequences,
                              backend::Arena& saved, backend::Arena& passing) const {
        return std::visit(
            [&](const auto& block) -> MixerActivations {
                return block.allocate(input, sequences, saved, passing);
            },
            block_);
    }
    void forward(MixerActivations& a, const Tensor& output, const parallel::Sequences& sequences,
                 const MixerTables& tables, backend::Arena& scratch) const {
        std::visit(
            [&]<class Block>(const Block& block) {
                block.forward(std::get<typename Block::Activations>(a), output, sequences,
                              std::get<typename Block::Tables>(tables), scratch);
            },
            block_);
    }
    void discard_cheap(MixerActivations& a) const {
        std::visit([&]<class Block>(
                       const Block& block) { block.discard_cheap(std::get<typename Block::Activations>(a)); },
                   block_);
    }
    void backward(const MixerActivations& a, const Tensor& d_stream, const parallel::Sequences& sequences,
                  const MixerTables& tables, backend::Arena& scratch) const {
        std::visit(
            [&]<class Block>(const Block& block) {
                block.backward(std::get<typename Block::Activations>(a), d_stream, sequences,
                               std::get<typename Block::Tables>(tables), scratch);
            },
            block_);
    }
    void prepare(std::span<const std::int64_t> rows, std::int64_t sequences, parallel::AttentionMask mask,
                 bool backward) const {
        std::visit([&](const auto& block) { block.prepare(rows, sequences, mask, backward); }, block_);
    }

    // Decoding.
    MixerState make_state(std::int64_t layers, std::int64_t rows, backend::Arena& arena) const {
        return std::visit(
            [&](const auto& block) -> MixerState { return block.make_state(layers, rows, arena); }, block_);
    }
    void record(const MixerActivations& a, std::int64_t rows, std::int64_t layer, MixerState& state) const {
        std::visit(
            [&]<class Block>(const Block& block) {
                block.record(std::get<typename Block::Activations>(a), rows, layer,
                             std::get<typename Block::State>(state));
            },
            block_);
    }
    void decode(MixerActivations& a, const Tensor& output, const parallel::Sequences& sequences,
                const MixerTables& tables, std::int64_t layer, MixerState& state,
                backend::Arena& scratch) const {
        std::visit(
            [&]<class Block>(const Block& block) {
                block.decode(std::get<typename Block::Activations>(a), output, sequences,
                             std::get<typename Block::Tables>(tables), layer,
                             std::get<typename Block::State>(state), scratch);
            },
            block_);
    }

private:
    using Block = std::variant<AttentionBlock>;
    static Block make(backend::Backend& backend, const ModelSpec& spec, const Role& role,
                      const parallel::Mesh& mesh, parallel::ParameterStore& store, const std::string& prefix,
                      const MixerForm& form) {
        return AttentionBlock(backend, spec, role, mesh, store, prefix, std::get<AttentionForm>(form));
    }

    Block block_;
};

}  // namespace maestro::model
