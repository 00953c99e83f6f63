// Whole text files.
#pragma once

#include <optional>
#include <string>

namespace maestro {

/// Returns the contents of the file, nothing if it cannot be read.
std::optional<std::string> read_text_file(const std::string& path);

/// Writes a temporary file and renames it, so that `path` is never incomplete; writes to devices and pipes
/// directly. Throws Error(cannot_create or io_error, all_ranks).
void write_text_file(const std::string& path, const std::string& text);

}  // namespace maestro
