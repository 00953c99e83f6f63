#include "safetensors/input_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "base/error.hpp"
#include "safetensors/message.hpp"

namespace maestro::safetensors {

// O_NONBLOCK: opening a named pipe would wait for a writer.
InputFile::InputFile(const std::filesystem::path& path)
    : path_(path), file_(storage::open_retrying(path, O_RDONLY | O_NONBLOCK)) {
    if (!file_) {
        if (!storage::is_lasting(errno) && errno != EACCES)
            storage::io_failed(path_, "cannot be opened", errno);
        throw Error(ExitCode::input_missing,
                    fmt::format("{}: {}; {}", path_.string(), std::strerror(errno),
                                errno == EACCES ? "make it readable"
                                                : "download the whole model folder, or correct the path"));
    }
    struct stat status {};
    if (::fstat(file_.get(), &status) != 0) storage::io_failed(path_, "cannot be read", errno);
    if (!S_ISREG(status.st_mode)) refuse(path_, "it is not a regular file; name a folder of a model");
    size_ = static_cast<std::uint64_t>(status.st_size);
}

void InputFile::read(void* target, std::uint64_t bytes, std::uint64_t offset, const std::string& what,
                     Pulse& pulse) const {
    const std::int64_t got = storage::read_at(file_.get(), target, bytes, offset, pulse);
    if (got < 0)
        throw Error(
            ExitCode::io_error,
            fmt::format("{}: {}, {} bytes at byte {} of the file: {}; check the disk or the network file "
                        "system",
                        path_.string(), what, bytes, offset, std::strerror(errno)));
    if (static_cast<std::uint64_t>(got) < bytes)
        refuse(path_,
               fmt::format("{}: the file now ends at byte {} and was longer when it was opened; do not "
                           "replace it during a run",
                           what, offset + static_cast<std::uint64_t>(got)));
}

bool has_file(const std::filesystem::path& path) {
    std::error_code error;
    const std::filesystem::file_status status = std::filesystem::symlink_status(path, error);
    if (status.type() == std::filesystem::file_type::none && error.value() != EACCES &&
        !storage::is_lasting(error.value()))
        storage::io_failed(path, "cannot be found", error.value());
    return status.type() != std::filesystem::file_type::not_found;
}

std::string read_small_text(const std::filesystem::path& path, const std::string& what, Pulse& pulse) {
    constexpr std::uint64_t kMaxBytes = 1 << 20;
    const InputFile file(path);
    if (file.size() == 0 || file.size() > kMaxBytes)
        refuse(path,
               fmt::format("it has {} bytes, so it is no {}; download the folder again", file.size(), what));
    std::string text(file.size(), '\0');
    file.read(text.data(), text.size(), 0, "the " + what, pulse);
    return text;
}

}  // namespace maestro::safetensors
