// Whole text files.
#pragma once

#include <optional>
#include <string>

namespace maestro {

/// The file's bytes; nothing where it cannot be read.
std::optional<std::string> read_text_file(const std::string& path);

/// Writes beside and renames, so that a file under its name is whole; a device or pipe is written to. Throws
/// Error(cannot_create or io_error, all_ranks).
void write_text_file(const std::string& path, const std::string& text);

}  // namespace maestro
