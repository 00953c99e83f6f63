#include "train/run/folder_keys.hpp"

#include <filesystem>

#include "base/error.hpp"
#include "base/text_file.hpp"
#include "comm/agree.hpp"

namespace maestro::train {

std::optional<families::ModelKeys> folder_keys(const comm::Communicator& world, const std::string& weights,
                                               const std::string& kind) {
    constexpr std::size_t kMaxBytes = 1 << 20;
    const std::string path = (std::filesystem::path(weights) / "config.json").string();
    std::string text;
    comm::agree(world, [&] {
        if (world.rank() != 0) return;
        text = read_text_file(path).value_or("");
        if (text.size() > kMaxBytes)
            throw Error(ExitCode::bad_data, path + ": larger than 1 MiB, so it is no model's configuration",
                        Scope::all_ranks);
    });
    world.broadcast(text);
    if (text.empty()) return {};
    return families::read_config(text, path, kind);
}

}  // namespace maestro::train
