#include "io/run_directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <fstream>

#include "base/error.hpp"
#include "storage/file.hpp"

namespace maestro::io {

namespace fs = std::filesystem;

bool holds_run(const fs::path& directory) {
    std::error_code ignored;
    return fs::exists(directory / "metrics.h5", ignored) ||
           (fs::is_directory(directory / "checkpoints", ignored) &&
            !fs::is_empty(directory / "checkpoints", ignored));
}

void prepare_run_directory(const fs::path& directory) {
    std::error_code error;
    fs::create_directories(directory / "checkpoints", error);
    const fs::path probe = directory / ".probe";
    std::ofstream file(probe);
    file << std::string(4096, '.');
    file.close();
    const bool written = !error && static_cast<bool>(file);
    fs::remove(probe, error);
    if (!written) {
        fs::remove(directory / "checkpoints", error);  // only if empty: what was there stays
        throw Error(
            ExitCode::cannot_create,
            fmt::format("{}: cannot write there; choose another run.output, or free space and permissions",
                        directory.string()));
    }
    // Otherwise a loss of power could take the directory away with everything that is synced in it.
    storage::sync(directory);
    for (fs::path at = directory; at.has_relative_path();) {
        at = at.parent_path();
        const storage::Descriptor above(at.empty() ? "." : at, O_RDONLY);
        if (above) ::fsync(above.get());  // not everyone who may write there may read there
    }
}

fs::path set_aside(const fs::path& path, const std::string& ending) {
    std::error_code error;
    fs::path aside = path.string() + ending;
    for (int number = 2; fs::exists(fs::symlink_status(aside, error)); ++number)
        aside = fmt::format("{}{}-{}", path.string(), ending, number);
    fs::rename(path, aside, error);
    if (error)
        storage::io_failed(path, fmt::format("cannot be renamed to {}", aside.string()), error.value());
    return aside;
}

std::uint64_t free_space(const fs::path& directory) {
    std::error_code error;
    const fs::space_info space = fs::space(directory, error);
    return error ? 0 : space.available;
}

void check_free_space(const fs::path& directory, std::uint64_t bytes) {
    std::error_code error;
    const fs::space_info space = fs::space(directory, error);
    if (!error && space.available < bytes)
        throw storage::NoRoom(fmt::format("{}: {} MiB are needed and {} MiB are free", directory.string(),
                                          (bytes >> 20) + 1, space.available >> 20));
}

}  // namespace maestro::io
