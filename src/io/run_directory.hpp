// The directory that a run writes to.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace maestro::io {

/// Does it hold a run (metrics or checkpoints)?
bool holds_run(const std::filesystem::path& directory);

/// Makes what is missing of it and tries it with a small file. Throws Error(cannot_create) where it cannot be
/// written. The caller holds the directory's lock.
void prepare_run_directory(const std::filesystem::path& directory);

/// Gives `path` another name beside it: with this ending (".damaged", ".abandoned") or, where that name is
/// taken, the first free one of ENDING-2, ENDING-3 and so on. What has such a name is never replaced. Returns
/// the name. The caller holds the directory's lock. Error(io_error).
std::filesystem::path set_aside(const std::filesystem::path& path, const std::string& ending);

/// Finds out whether a run could write there: makes what is missing of it, tries it with a small file, and
/// removes both. Throws as prepare_run_directory().
void check_run_directory(const std::filesystem::path& directory);

/// Bytes that this user may still write below `directory`, which need not exist yet; nothing where that is
/// not known.
std::optional<std::uint64_t> free_space(const std::filesystem::path& directory);
/// Throws storage::NoRoom where less than `bytes` are free below `directory`.
void check_free_space(const std::filesystem::path& directory, std::uint64_t bytes);

}  // namespace maestro::io
