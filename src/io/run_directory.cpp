#include "io/run_directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

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

namespace {

/// Returns why no file can be written there, "" where one can. Leaves none.
std::string try_to_write(const fs::path& directory) {
    const fs::path probe = directory / fmt::format(".probe-{}", ::getpid());
    errno = 0;
    std::ofstream file(probe);
    file << std::string(4096, '.');
    file.close();
    const std::string why = file ? "" : std::strerror(errno);
    std::error_code ignored;
    fs::remove(probe, ignored);
    return why;
}

[[noreturn]] void refuse(const fs::path& directory, const std::string& why) {
    throw Error(ExitCode::cannot_create,
                fmt::format("{}: cannot write there ({}); choose another run.output, or free space and "
                            "permissions",
                            directory.string(), why));
}

}  // namespace

void check_run_directory(const fs::path& name) {
    const fs::path directory = name.lexically_normal();  // "new/../run" does not need "new"
    std::vector<fs::path> missing;                       // the innermost first
    std::error_code error;
    for (fs::path at = directory / "checkpoints"; !at.empty() && !fs::exists(at, error);
         at = at.parent_path())
        missing.push_back(at);
    std::string why;
    std::size_t made = missing.size();  // missing[made] and those after it have been made
    while (made > 0 && why.empty()) {
        if (fs::create_directory(missing[made - 1], error))
            --made;
        else if (!error)  // another process has made it
            missing.erase(missing.begin() + static_cast<std::ptrdiff_t>(--made));
        else
            why = error.message();
    }
    if (why.empty()) why = try_to_write(directory);
    for (std::size_t i = made; i < missing.size(); ++i) fs::remove(missing[i], error);  // only if empty
    if (!why.empty()) refuse(directory, why);
}

void prepare_run_directory(const fs::path& directory) {
    std::error_code error;
    fs::create_directories(directory / "checkpoints", error);
    const std::string why = error ? error.message() : try_to_write(directory);
    if (!why.empty()) {
        fs::remove(directory / "checkpoints", error);  // only if empty: what was there stays
        refuse(directory, why);
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

std::optional<std::uint64_t> free_space(const fs::path& directory) {
    std::error_code error;
    fs::path there = fs::absolute(directory, error);
    while (!error && !fs::exists(there, error) && there.has_relative_path()) there = there.parent_path();
    const fs::space_info space = fs::space(there, error);
    if (error) return {};
    return space.available;
}

void check_free_space(const fs::path& directory, std::uint64_t bytes) {
    if (const auto free = free_space(directory); free && *free < bytes)
        throw storage::NoRoom(fmt::format("{}: {} MiB are needed and {} MiB are free", directory.string(),
                                          (bytes >> 20) + 1, *free >> 20));
}

}  // namespace maestro::io
