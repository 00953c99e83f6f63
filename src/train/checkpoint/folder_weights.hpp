// Loads weights from the folder of a published model.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/pulse.hpp"
#include "families/family.hpp"
#include "model/module.hpp"
#include "parallel/parameter_store.hpp"
#include "safetensors/safetensors_folder.hpp"

namespace maestro::train {

/// A whole parameter, as one rank declares it.
struct DeclaredParameter {
    std::string name;
    std::vector<std::int64_t> shape;
    safetensors::StoredType type;  ///< in a new folder: bf16, or f32 where a bf16 model keeps it precise
};

/// The parameters of a whole model, with its adapters.
std::vector<DeclaredParameter> parameters_of(const model::ModelSpec& spec, const Lora& lora = {});

/// Returns the tensors of this folder that hold a parameter (families::forms_of), in the form whose shape
/// they have; where it has none of them, those of published models. Errors of SafetensorsFolder::find().
std::vector<families::Piece> pieces_in(safetensors::SafetensorsFolder& folder, const model::ModelSpec& spec,
                                       std::string_view parameter, const std::vector<std::int64_t>& shape);

/// Refuses a folder that lacks a tensor of the model or has one that the model would not use. Reads headers
/// alone. Error(input_missing, bad_data, io_error), as load_folder() and load_from_folder().
void check_folder(const std::string& folder, const model::ModelSpec& spec, Pulse& pulse);

/// Loads this rank's shard of a parameter from the tensors of its pieces, block by block and by several
/// threads, and marks it as initialized. Error(bad_data, io_error).
void load_from_tensors(const parallel::Parameter& parameter, parallel::ParameterStore& store,
                       const std::vector<families::Piece>& pieces,
                       const std::vector<safetensors::SafetensorsFolder::Found>& tensors, Pulse& pulse);

/// Loads this rank's shards of all parameters but those of adapters, and marks them as initialized, as
/// load_weights() does from a checkpoint.
void load_folder(const std::string& folder, const model::ModelSpec& spec, parallel::ParameterStore& store,
                 Pulse& pulse);

/// Loads the shard of one parameter from the tensors that hold `source`, the name of a parameter of a model
/// of `spec`.
void load_from_folder(safetensors::SafetensorsFolder& folder, const model::ModelSpec& spec,
                      const std::string& source, const parallel::Parameter& parameter,
                      parallel::ParameterStore& store, Pulse& pulse);

}  // namespace maestro::train
