// What a rank writes of a checkpoint: the weights and moments of its shards (parallel/parameter_group.hpp).
// Only this file and weights.hpp know where they are kept.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/pulse.hpp"
#include "io/checkpoint.hpp"
#include "parallel/parameter_store.hpp"
#include "train/step/optimizer.hpp"

namespace maestro::train {

/// What this rank holds of a stage of a section. The caller owns what it refers to.
struct StageShard {
    int section = 0;  ///< colour
    std::string name;
    const parallel::ParameterStore& store;
    Optimizer* optimizer = nullptr;     ///< null: frozen
    bool first = false;                 ///< true on one rank of each stage, which lists its parameters
    backend::Arena* scratch = nullptr;  ///< of its device, where the host cannot read the weights
    int stage = 0;                      ///< within the section

    bool makes_file() const { return first && stage == 0; }  ///< true on one rank of each section
};

/// Elements of an array of a section's file that this rank writes.
struct Share {
    const parallel::Parameter* parameter = nullptr;
    io::Stored what = io::Stored::weight;
    Range range;  ///< among the elements of the parameter that this rank holds
    /// f32 [n], or bf16 for the frozen weights of a bf16 run, in the memory of the weights or the optimizer.
    Tensor values;
};
/// Returns the shares of this rank. Those of all ranks make up each array once: of copies, the first rank
/// writes its own. They stay where they are for the lifetime of the parameters.
std::vector<Share> shares_of(const StageShard& shard);

bool all_finite(const float* values, std::int64_t count);
/// Error(not_finite) where a trained weight of this rank's shards is NaN or Inf. Not collective.
void check_finite(const StageShard& shard, std::int64_t step);

/// Loads the moments of this rank's shards from a verified checkpoint. Error(bad_data, io_error).
void load_moments(const std::string& checkpoint, const std::string& section,
                  const parallel::ParameterStore& store, Optimizer& optimizer, Pulse& pulse);

}  // namespace maestro::train
