// The parts of a language model's micro-batch, in the row spaces of language.hpp. Private to the model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "model/language.hpp"
#include "ops/vocabulary_shard.hpp"

namespace maestro::model {

/// A token that stands for an item.
struct Language::Marked {
    std::size_t token = 0;                    ///< where it stands in the sample
    std::optional<std::size_t> encoder = {};  ///< whose rows replace it, by index in expansions_
    RowGrid grid = {};                        ///< of these rows
};

/// The micro-batch in packed rows, with its prediction targets.
struct Language::PackedBatch {
    struct Target {
        std::int32_t packed_row;  ///< the row that predicts
        std::int32_t token;       ///< the token to be predicted
        float weight;
        std::int32_t answer;  ///< index of the answer that the token belongs to; -1: none
    };
    std::vector<std::int64_t> lengths;  ///< packed rows of each sample
    std::vector<std::int32_t> ids;      ///< by packed row: the token, or encoder_id() of what fills it
    /// By axis of rotary positions and packed row: the position in the sample.
    std::vector<std::vector<std::int32_t>> positions;
    std::vector<Target> targets;    ///< in the order of their packed rows
    std::int32_t answer_count = 0;  ///< answers in the micro-batch
};

/// How many positions each row of a language model has.
std::size_t position_axes(const ModelSpec& spec);

/// This rank's part of a micro-batch, with what backward() reads.
struct Language::State final : Saved {
    explicit State(parallel::Sequences s) : sequences(std::move(s)) {}
    parallel::Sequences sequences;
    std::vector<MixerTables> tables;
    StackActivations stack;
    /// By slice row: the token, counted from the first of this rank's vocabulary. -1 where another rank has
    /// the token or an edge delivers the row.
    std::vector<std::int32_t> slice_ids;
    /// By axis of rotary positions and slice row: the position in the sample.
    std::vector<std::vector<std::int32_t>> slice_positions;
    std::int64_t first_local_row = 0;  ///< the slice row at which this rank's local rows begin
    std::int64_t local_rows = 0;
    /// By input edge: the local rows that its embeddings fill.
    std::vector<std::vector<std::int32_t>> embedding_rows;
    /// By input edge and sample: how many rows the edge delivers to this rank.
    std::vector<std::vector<std::int64_t>> input_rows;
    Tensor device_slice_ids;
    std::vector<Tensor> device_embedding_rows;
    Norm::Statistics norm;  ///< of the final norm, [local rows]
    Tensor d_normed;  ///< gradient of the final norm's output, which forward() leaves where it has the loss
};

/// The targets of this rank's slice. Lists by target row have the targets of the first tp rank first.
struct Language::Targets {
    std::vector<std::int32_t> tokens, answers;  ///< by target row
    std::vector<float> weights;                 ///< by target row
    std::vector<std::int64_t> by_tp_rank;       ///< how many targets each tp rank has
    std::int32_t answer_count = 0;
    std::vector<std::int32_t>
        predicting_rows;  ///< of each target of this rank: the local row that predicts it
    std::vector<std::int64_t> local_by_sample;  ///< how many of this rank's targets each sample has
};

/// Device tensors that all chunks of the loss read.
struct Language::LossInputs {
    Tensor tokens, weights;  ///< [N]
    Tensor predicting_rows;  ///< [targets of this rank], local rows
    Tensor local_hidden;     ///< [targets of this rank, C]
    Tensor hidden;           ///< [N, C]: the head's input, replaced by its gradient chunk after chunk
    Tensor teacher_states;   ///< [N, teacher width]; absent without distillation
    const parallel::Parameter* teacher_head = nullptr;
    ops::VocabularyShard vocabulary;
};

}  // namespace maestro::model
