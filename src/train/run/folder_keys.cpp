#include "train/run/folder_keys.hpp"

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
    constexpr std::uint64_t kMaxBytes = 1 << 20;
    const fs::path path = folder / "config.json";
    std::error_code unknown;
    if (!fs::exists(fs::symlink_status(path, unknown))) {
        for (const char* name : {safetensors::kSingleFile, safetensors::kIndexFile, "adapter_config.json"})
            if (fs::exists(folder / name, unknown)) {
                const safetensors::SafetensorsFolder refused(folder, pulse);
                throw Error(ExitCode::input_missing,
                            fmt::format("{}: it is missing; download the whole model folder", path.string()));
            }
        return {};
    }
    const safetensors::InputFile file(path);
    if (file.size() == 0 || file.size() > kMaxBytes)
        throw Error(ExitCode::bad_data,
                    fmt::format("{}: it has {} bytes, so it is no model's configuration; download the model "
                                "again",
                                path.string(), file.size()));
    std::string text(file.size(), '\0');
    file.read(text.data(), text.size(), 0, "the configuration", pulse);
    return text;
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
