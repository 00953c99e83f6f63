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
    bool ended = true;      ///< false: the run goes on, and is killed if nothing replaces this
};

/// Writes DIRECTORY/exit.json under another name and renames it. A failure that is reported there is not
/// overwritten: failures that other ranks report later are its consequences. One of a run that has not ended
/// is replaced by any that has, and replaces none. Returns false if writing fails;
/// it is called at the end of the program, where nothing can be done about that.
bool write_exit_report(const std::filesystem::path& directory, const ExitReport& report) noexcept;

}  // namespace maestro::io
