#include "io/run_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/error.hpp"

namespace maestro::io {

namespace fs = std::filesystem;

namespace {

/// 0, or errno: EAGAIN where another holds it. Locks of the open file, not of the process: HDF5 and MPI close
/// files as they like.
int lock(int descriptor) {
    struct flock whole = {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    if (::fcntl(descriptor, F_OFD_SETLK, &whole) == 0) return 0;
    if (errno == EACCES || errno == EAGAIN) return EAGAIN;
    if (errno == EINVAL && ::flock(descriptor, LOCK_EX | LOCK_NB) == 0) return 0;  // before Linux 3.15
    return errno == EWOULDBLOCK ? EAGAIN : errno;
}

bool still_there(int descriptor, const fs::path& path) {
    struct stat open = {}, named = {};
    return ::fstat(descriptor, &open) == 0 && ::stat(path.c_str(), &named) == 0 &&
           open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

std::string owner_of(int descriptor) {
    std::array<char, 512> owner{};
    if (::pread(descriptor, owner.data(), owner.size() - 1, 0) <= 0) return "another process";
    return owner.data();
}

[[noreturn]] void refuse_in_use(const fs::path& directory, const std::string& owner) {
    throw Error(ExitCode::cannot_create,
                fmt::format("{}: in use by {}; wait for its end, or set another run.output",
                            directory.string(), owner));
}

std::string this_process() {
    std::array<char, 256> host{};
    ::gethostname(host.data(), host.size() - 1);
    const char* job = std::getenv("SLURM_JOB_ID");
    return fmt::format("process {} on {}{}", ::getpid(), host.data(),
                       job ? fmt::format(", Slurm job {}", job) : "");
}

}  // namespace

void check_not_in_use(const fs::path& directory) {
    const storage::Descriptor file(directory / ".lock", O_RDONLY);
    if (!file) return;
    struct flock whole = {};
    whole.l_type = F_WRLCK;
    if (::fcntl(file.get(), F_OFD_GETLK, &whole) == 0 && whole.l_type != F_UNLCK)
        refuse_in_use(directory, owner_of(file.get()));
}

RunLock::RunLock(const fs::path& directory) : directory_(directory) {
    const fs::path path = directory / ".lock";
    const auto refuse = [&](const std::string& why) {
        throw Error(ExitCode::cannot_create,
                    fmt::format("{}: {}; choose another run.output, or free space and permissions",
                                directory.string(), why));
    };
    std::error_code error;
    made_ = !fs::exists(directory, error);
    fs::create_directories(directory, error);
    if (error) refuse("cannot be made: " + error.message());
    for (;;) {
        file_ = storage::Descriptor(path, O_RDWR | O_CREAT);
        if (!file_) refuse(fmt::format("cannot write there: {}", std::strerror(errno)));
        const int failed = lock(file_.get());
        if (failed == EAGAIN) {
            const std::string owner = owner_of(file_.get());
            file_ = {};
            refuse_in_use(directory, owner);
        }
        if (failed != 0)
            warning_ = fmt::format("{}: cannot be locked ({}); see to it that no other job writes there",
                                   directory.string(), std::strerror(failed));
        if (still_there(file_.get(), path)) break;  // else its last holder has just removed it
    }
    const std::string owner = this_process();
    Pulse quiet;
    if (::ftruncate(file_.get(), 0) != 0 ||
        !storage::write_at(file_.get(), owner.data(), owner.size(), 0, quiet)) {
        // A full disk: the lock holds all the same, without a name.
    }
}

RunLock::~RunLock() {
    if (!file_) return;
    std::error_code ignored;
    fs::remove(directory_ / ".lock", ignored);
    if (made_) fs::remove(directory_, ignored);  // only if empty
}

RunLock::RunLock(RunLock&& other) noexcept
    : directory_(std::move(other.directory_)),
      file_(std::move(other.file_)),
      made_(other.made_),
      warning_(std::move(other.warning_)) {}

RunLock& RunLock::operator=(RunLock&& other) noexcept {
    std::swap(directory_, other.directory_);
    std::swap(file_, other.file_);
    std::swap(made_, other.made_);
    std::swap(warning_, other.warning_);
    return *this;
}

}  // namespace maestro::io
