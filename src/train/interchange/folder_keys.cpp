#include "train/interchange/folder_keys.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "base/error.hpp"
#include "comm/agree.hpp"
#include "safetensors/input_file.hpp"
#include "safetensors/safetensors_folder.hpp"

namespace maestro::train {

namespace {

namespace fs = std::filesystem;

/// The text of config.json; empty where `folder` is no folder of a model. Error(input_missing, bad_data,
/// io_error).
std::string read_config_text(const fs::path& folder, Pulse& pulse) {
    const fs::path path = folder / "config.json";
    if (safetensors::has_file(path))
        return safetensors::read_small_text(path, "model's configuration", pulse);
    for (const char* name : {safetensors::kSingleFile, safetensors::kIndexFile, "adapter_config.json"})
        if (safetensors::has_file(folder / name)) {
            const safetensors::SafetensorsFolder refused(folder, pulse);
            throw Error(ExitCode::input_missing,
                        fmt::format("{}: it is missing; download the whole model folder", path.string()));
        }
    return {};
}

}  // namespace

std::optional<families::ModelKeys> folder_keys(const comm::Communicator& world, const std::string& weights,
                                               const std::string& kind) {
    std::string text;
    comm::agree(world, [&] {
        Pulse pulse;
        if (world.rank() == 0) text = read_config_text(weights, pulse);
    });
    world.broadcast(text);
    if (text.empty()) return {};
    return families::read_config(text, (fs::path(weights) / "config.json").string(), kind);
}

}  // namespace maestro::train
