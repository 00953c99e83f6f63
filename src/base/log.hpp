// The log of a run: stdout on rank 0, and a file once one is open. Other ranks write nothing to it, except
// errors that only they know.
#pragma once

#include <fmt/core.h>

#include <filesystem>
#include <string_view>
#include <utility>

namespace maestro::log {

/// Starts logging in this process. `prints`: it writes to stdout; true on rank 0 alone.
void start(bool prints);
/// Appends everything that is logged from now on to `path`. Throws Error(cannot_create).
void open_file(const std::filesystem::path& path);
void write(std::string_view line);        ///< stdout and file, if this process prints
void write_error(std::string_view line);  ///< stderr and file; any rank
void write_file(std::string_view text);   ///< the file only, for text that is too long for a terminal
void flush();

template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
    write(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace maestro::log
