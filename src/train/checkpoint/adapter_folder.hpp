// The folder of a LoRA adapter, as Hugging Face PEFT writes and loads it.
#pragma once

#include <string>

#include "base/pulse.hpp"
#include "model/module.hpp"
#include "parallel/parameter_store.hpp"
#include "spec/lora.hpp"

namespace maestro::train {

inline constexpr const char* kAdapterConfig = "adapter_config.json";
inline constexpr const char* kAdapterWeights = "adapter_model.safetensors";

/// The text of adapter_config.json. `base`: the folder or the name of the model that the adapter is for.
std::string adapter_config(const Lora& lora, const std::string& base);

/// Refuses a folder whose adapter is not one of this model and this LoRA. Reads the configuration and the
/// header of the weights. Error(input_missing, bad_data, io_error), as the next.
void check_adapter_folder(const std::string& folder, const model::ModelSpec& spec, const Lora& lora,
                          Pulse& pulse);
/// Loads this rank's shards of the adapters and marks them as initialized.
void load_adapter_folder(const std::string& folder, const model::ModelSpec& spec, const Lora& lora,
                         parallel::ParameterStore& store, Pulse& pulse);

}  // namespace maestro::train
