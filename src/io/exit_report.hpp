// exit.json: how a run ended, because launchers do not pass exit codes on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace maestro::io {

struct ExitReport {
    int code = 0;
    std::string reason;
    int rank = 0;
    std::string host;
    std::int64_t step = 0;  ///< steps done
};

/// Writes DIRECTORY/exit.json under another name and moves it there. A failure that is told there stays: what
/// ranks say after the first is its consequence. Returns false where writing fails: it is called on the way
/// out, where nothing is left to tell it to.
bool write_exit_report(const std::filesystem::path& directory, const ExitReport& report) noexcept;

}  // namespace maestro::io
