// How files of weights are refused: "FILE: what is wrong; what to do". Names in a file may be hostile: they
// are escaped and shortened before they reach a terminal or a log.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace maestro::safetensors {

/// The text in double quotes, in ASCII, with escapes as in JSON; at most the first 100 bytes of it.
std::string in_quotes(std::string_view text);
/// `[2, 3]`; of many dimensions the first ones.
std::string text_of(const std::vector<std::int64_t>& shape);

/// What to do about a file that is damaged.
inline constexpr const char* kMakeAgain = "download the file again or convert the model again";

/// Throws Error(bad_data): "FILE: WHAT".
[[noreturn]] void refuse(const std::filesystem::path& file, const std::string& what);
/// Throws Error(bad_data): "FILE: tensor "NAME": WHAT".
[[noreturn]] void refuse(const std::filesystem::path& file, std::string_view tensor, const std::string& what);

}  // namespace maestro::safetensors
