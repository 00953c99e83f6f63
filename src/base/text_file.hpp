// Whole text files.
#pragma once

#include <optional>
#include <string>

namespace maestro {

/// The file's bytes; nothing where it cannot be read.
std::optional<std::string> read_text_file(const std::string& path);

}  // namespace maestro
