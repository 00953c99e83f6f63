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

RawFile::RawFile(const std::filesystem::path& path) : path_(path) {
    descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe must not hold us up
    if (descriptor_ < 0)
        throw Error(
            ExitCode::input_missing,
            fmt::format("{}: {}; scripts/data/make_all.py makes the sample files of the decks in inputs/",
                        path_.string(), std::strerror(errno)));
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
        ::close(descriptor_);
        refuse(path_, "file", "not a regular file; name a sample file made by scripts/data");
    }
}

RawFile::~RawFile() {
    ::close(descriptor_);
}

void RawFile::read(void* target, std::int64_t bytes, std::int64_t offset, std::string_view dataset) const {
    auto* to = static_cast<char*>(target);
    while (bytes > 0) {
        const auto got = ::pread(descriptor_, to, static_cast<std::size_t>(bytes), offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            throw Error(ExitCode::io_error,
                        fmt::format("{}: dataset '{}', byte {} of the file: {}; check the disk or the "
                                    "network file system",
                                    path_.string(), dataset, offset, std::strerror(errno)));
        if (got == 0)
            refuse(path_, fmt::format("dataset '{}', byte {} of the file", dataset, offset),
                   "the file has become shorter since it was opened; make it again and do not replace it "
                   "during a run");
        to += got;
        bytes -= got;
        offset += got;
    }
}

}  // namespace maestro::data
