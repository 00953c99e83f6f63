#include "data/raw_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.hpp"
#include "data/container.hpp"

namespace maestro::data {

// O_NONBLOCK: opening a named pipe would wait for a writer.
RawFile::RawFile(const std::filesystem::path& path)
    : path_(path), file_(storage::open_retrying(path, O_RDONLY | O_NONBLOCK)) {
    if (!file_) {
        if (!storage::is_lasting(errno) && errno != EACCES)
            storage::io_failed(path_, "cannot be opened", errno);
        throw Error(
            ExitCode::input_missing,
            fmt::format(
                "{}: {}; scripts/data/make_all.py makes the sample files of the decks in inputs/, and "
                "scripts/data/conversations.py those for a model folder",
                path_.string(), std::strerror(errno)));
    }
    struct stat status {};
    if (::fstat(file_.get(), &status) != 0 || !S_ISREG(status.st_mode))
        refuse(path_, "file", "not a regular file; name a sample file made by scripts/data");
}

void RawFile::read(void* target, std::int64_t bytes, std::int64_t offset, std::string_view dataset,
                   Pulse& pulse) const {
    const std::int64_t got = storage::read_at(file_.get(), target, static_cast<std::uint64_t>(bytes),
                                              static_cast<std::uint64_t>(offset), pulse);
    if (got < 0)
        throw Error(
            ExitCode::io_error,
            fmt::format("{}: dataset '{}', {} bytes at byte {} of the file: {}; check the disk or the "
                        "network file system",
                        path_.string(), dataset, bytes, offset, std::strerror(errno)));
    if (got < bytes)
        refuse(path_, fmt::format("dataset '{}', byte {} of the file", dataset, offset + got),
               "the file has become shorter since it was opened; make it again and do not replace it "
               "during a run");
}

}  // namespace maestro::data
