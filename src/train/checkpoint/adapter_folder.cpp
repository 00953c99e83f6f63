#include "train/checkpoint/adapter_folder.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "families/family.hpp"
#include "families/json_text.hpp"
#include "safetensors/input_file.hpp"
#include "safetensors/safetensors_file.hpp"
#include "train/checkpoint/folder_weights.hpp"

namespace maestro::train {

namespace {

using Json = nlohmann::json;

std::string path_in(const std::string& folder, const char* name) {
    return (std::filesystem::path(folder) / name).string();
}

/// What PEFT would compute differently if it were set, with the values that leave it off.
void check_plain(const Json& config, const std::string& path) {
    const auto refuse = [&](const char* key) {
        throw Error(ExitCode::bad_data, fmt::format("{}: {}: {} is not built; use an adapter without it",
                                                    path, key, config.at(key).dump()));
    };
    for (const char* key : {"use_dora", "use_rslora", "fan_in_fan_out", "lora_bias", "use_qalora"})
        if (config.contains(key) && config.at(key) != Json(false) && !config.at(key).is_null()) refuse(key);
    for (const char* key : {"modules_to_save", "layers_to_transform", "rank_pattern", "alpha_pattern",
                            "target_parameters", "layer_replication", "trainable_token_indices"})
        if (config.contains(key) && !config.at(key).empty()) refuse(key);
    if (config.value("bias", "none") != "none") refuse("bias");
}

void check_config(const std::string& folder, const Lora& lora, Pulse& pulse) {
    const std::string path = path_in(folder, kAdapterConfig);
    if (!safetensors::has_file(path))
        throw Error(ExitCode::input_missing,
                    fmt::format("{}: it is missing; give the folder of a PEFT adapter", path));
    const Json config =
        families::parse_object(safetensors::read_small_text(path, "adapter's configuration", pulse), path);
    const auto differs = [&](const std::string& key, const std::string& there, const std::string& here) {
        throw Error(ExitCode::bad_data, fmt::format("{}: {} is {}, but by the deck {}; change section.lora",
                                                    path, key, there, here));
    };
    try {
        if (const auto type = config.at("peft_type").get<std::string>(); type != "LORA")
            throw Error(ExitCode::bad_data, fmt::format("{}: peft_type is {}; allowed: LORA", path, type));
        check_plain(config, path);
        if (config.at("r") != lora.rank) differs("r", config.at("r").dump(), std::to_string(lora.rank));
        if (config.at("lora_alpha").get<double>() != lora.alpha)
            differs("lora_alpha", config.at("lora_alpha").dump(), fmt::format("{}", lora.alpha));
    } catch (const Json::exception& error) {
        throw Error(ExitCode::bad_data, fmt::format("{}: {}", path, error.what()));
    }
}

const safetensors::TensorInfo& find_tensor(const safetensors::SafetensorsFile& file,
                                           const families::Piece& piece) {
    const safetensors::TensorInfo* const tensor = file.find(piece.tensor);
    if (!tensor)
        throw Error(ExitCode::bad_data,
                    fmt::format("{}: tensor \"{}\" is missing; the adapter is of another model",
                                file.path().string(), piece.tensor));
    if (tensor->shape != piece.shape)
        throw Error(ExitCode::bad_data,
                    fmt::format("{}: tensor \"{}\" has the shape [{}], and not [{}]; the adapter is of "
                                "another model",
                                file.path().string(), piece.tensor, fmt::join(tensor->shape, ", "),
                                fmt::join(piece.shape, ", ")));
    file.check_type(*tensor);
    return *tensor;
}

constexpr std::string_view kBase = "base_model.model.";

/// Whether this tensor adapts another model of the folder: PEFT has all of them in one file.
bool is_of_other_model(const model::ModelSpec& spec, std::string_view tensor) {
    return tensor.starts_with(kBase) && families::is_of_other_model(spec, tensor.substr(kBase.size()));
}

/// Compares the linear layers that have an adapter in the file with those that do by the deck.
void check_targets(const safetensors::SafetensorsFile& file, const model::ModelSpec& spec, const Lora& lora) {
    std::set<std::string, std::less<>> targets;
    for (const safetensors::TensorInfo& tensor : file.tensors()) {
        if (is_of_other_model(spec, tensor.name)) continue;
        const std::string_view layer = std::string_view(tensor.name).substr(0, tensor.name.rfind(".lora_"));
        const std::string_view target = families::lora_target_of(layer);
        targets.emplace(target.empty() ? layer.substr(layer.rfind('.') + 1) : target);
    }
    if (targets != std::set<std::string, std::less<>>(lora.targets.begin(), lora.targets.end()))
        throw Error(
            ExitCode::bad_data,
            fmt::format("{}: it adapts {}, but by the deck {}; change section.lora.targets",
                        file.path().string(), fmt::join(targets, ", "), fmt::join(lora.targets, ", ")));
}

}  // namespace

std::string adapter_config(const Lora& lora, const std::string& base) {
    const bool whole = lora.alpha == static_cast<double>(static_cast<std::int64_t>(lora.alpha));
    const Json config = {
        {"peft_type", "LORA"},
        {"task_type", "CAUSAL_LM"},
        {"base_model_name_or_path", base},
        {"r", lora.rank},
        {"lora_alpha", whole ? Json(static_cast<std::int64_t>(lora.alpha)) : Json(lora.alpha)},
        {"lora_dropout", 0.0},
        {"target_modules", lora.targets},
        {"bias", "none"},
        {"fan_in_fan_out", false},
        {"init_lora_weights", true},
        {"inference_mode", true},
        {"modules_to_save", nullptr},
        {"use_dora", false},
        {"use_rslora", false}};
    return config.dump(2) + "\n";
}

void check_adapter_folder(const std::string& folder, const model::ModelSpec& spec, const Lora& lora,
                          Pulse& pulse) {
    check_config(folder, lora, pulse);
    const safetensors::SafetensorsFile file(path_in(folder, kAdapterWeights), pulse);
    check_targets(file, spec, lora);
    std::set<std::string, std::less<>> used;
    for (const auto& [name, shape, type] : parameters_of(spec, lora)) {
        if (!parallel::is_adapter(name)) continue;
        for (const families::Piece& piece : families::adapter_pieces(spec, lora, name, shape)) {
            find_tensor(file, piece);
            used.insert(piece.tensor);
        }
    }
    for (const safetensors::TensorInfo& tensor : file.tensors())
        if (!used.contains(tensor.name) && !is_of_other_model(spec, tensor.name))
            throw Error(
                ExitCode::bad_data,
                fmt::format("{}: tensor \"{}\" is not part of this adapter; the adapter is of another "
                            "model",
                            file.path().string(), tensor.name));
}

void load_adapter_folder(const std::string& folder, const model::ModelSpec& spec, const Lora& lora,
                         parallel::ParameterStore& store, Pulse& pulse) {
    const safetensors::SafetensorsFile file(path_in(folder, kAdapterWeights), pulse);
    for (const parallel::Parameter& p : store.parameters()) {
        if (!parallel::is_adapter(p.name)) continue;
        const auto pieces = families::adapter_pieces(spec, lora, p.name, p.shape);
        std::vector<safetensors::SafetensorsFolder::Found> tensors;
        for (const families::Piece& piece : pieces) tensors.push_back({&file, &find_tensor(file, piece)});
        load_from_tensors(p, store, pieces, tensors, pulse);
    }
}

}  // namespace maestro::train
