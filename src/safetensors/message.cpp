#include "safetensors/message.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.hpp"

namespace maestro::safetensors {

std::string in_quotes(std::string_view text) {
    constexpr std::size_t kShown = 100;
    using nlohmann::json;
    std::string shown =
        json(std::string(text.substr(0, kShown))).dump(-1, ' ', true, json::error_handler_t::replace);
    if (text.size() > kShown) shown += fmt::format("... ({} bytes)", text.size());
    return shown;
}

std::string text_of(const std::vector<std::int64_t>& shape) {
    constexpr std::size_t kShown = 8;
    return fmt::format("[{}{}]",
                       fmt::join(shape.begin(), shape.begin() + std::min(shape.size(), kShown), ", "),
                       shape.size() > kShown ? ", ..." : "");
}

void refuse(const std::filesystem::path& file, const std::string& what) {
    throw Error(ExitCode::bad_data, fmt::format("{}: {}", file.string(), what));
}

void refuse(const std::filesystem::path& file, std::string_view tensor, const std::string& what) {
    refuse(file, fmt::format("tensor {}: {}", in_quotes(tensor), what));
}

}  // namespace maestro::safetensors
