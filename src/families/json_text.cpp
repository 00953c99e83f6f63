#include "families/json_text.hpp"

#include <fmt/format.h>

#include "base/error.hpp"

namespace maestro::families {

nlohmann::json parse_object(std::string_view text, const std::string& path) {
    constexpr int kMaxDepth = 16;
    const auto is_flat = [&](int depth, nlohmann::json::parse_event_t, const nlohmann::json&) {
        if (depth > kMaxDepth)
            throw Error(
                ExitCode::bad_data,
                fmt::format("{}: its JSON has more than {} levels; download or convert the model again", path,
                            kMaxDepth),
                Scope::all_ranks);
        return true;
    };
    nlohmann::json root = nlohmann::json::parse(text, is_flat, false);
    if (!root.is_object())
        throw Error(ExitCode::bad_data,
                    fmt::format("{}: not a JSON object; download or convert the model again", path),
                    Scope::all_ranks);
    return root;
}

}  // namespace maestro::families
