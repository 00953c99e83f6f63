#include "storage/file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/checksum.hpp"
#include "base/error.hpp"
#include "base/log.hpp"

namespace maestro::storage {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kBlock = 1 << 20;
constexpr int kLockPauses = 200;  ///< of a millisecond
constexpr std::uint64_t kReserveAtOnce = std::uint64_t{1} << 30;
// A network file system that has lost its server for a moment answers again within seconds.
constexpr std::array kPauses = {std::chrono::milliseconds(100), std::chrono::milliseconds(400),
                                std::chrono::milliseconds(1500)};

/// Calls call() until it returns at least 0, the error is a lasting one, or the pauses are used up; then
/// returns -1, with errno.
template <class Call>
auto try_again(Call&& call) {
    auto pause = kPauses.begin();
    for (;;) {
        const auto result = call();
        if (result >= 0) return result;
        if (errno == EINTR) continue;
        if (is_lasting(errno) || pause == kPauses.end()) return result;
        const int number = errno;
        std::this_thread::sleep_for(*pause++);
        errno = number;
    }
}

}  // namespace

FileLock::FileLock(const Descriptor& file, Kind kind) : file_(file.get()) {
    const char* const locking = std::getenv("HDF5_USE_FILE_LOCKING");
    if (locking != nullptr && (std::string_view(locking) == "FALSE" || std::string_view(locking) == "0"))
        return;
    const int operation = (kind == Kind::shared ? LOCK_SH : LOCK_EX) | LOCK_NB;
    for (int pauses = kLockPauses; !held_;) {
        held_ = ::flock(file_, operation) == 0;
        if (held_ || errno == EINTR) continue;
        if (errno != EWOULDBLOCK || pauses-- == 0) return;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

FileLock::~FileLock() {
    // Closing the file does not unlock it while a child process has a copy of the descriptor.
    if (held_) ::flock(file_, LOCK_UN);
}

bool is_lasting(int number) {
    constexpr std::array kLasting = {ENOENT, ENOTDIR, EISDIR, ELOOP, EINVAL, EBADF, ENAMETOOLONG};
    return std::find(kLasting.begin(), kLasting.end(), number) != kLasting.end();
}

Descriptor::Descriptor(const fs::path& path, int flags)
    : value_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {}
Descriptor::~Descriptor() {
    if (value_ >= 0) ::close(value_);
}
Descriptor::Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
}

void io_failed(const fs::path& path, const std::string& what, int number) {
    const std::string fault = fmt::format("{}: {}: {}", path.string(), what, std::strerror(number));
    if (number == ENOSPC || number == EDQUOT || number == EFBIG) throw NoRoom(fault);
    throw Error(ExitCode::io_error, fault);
}

Descriptor open_retrying(const fs::path& path, int flags) {
    Descriptor file;
    try_again([&] {
        file = Descriptor(path, flags);
        return file.get();
    });
    return file;
}

Descriptor open_to_read(const fs::path& path) {
    Descriptor file = open_retrying(path, O_RDONLY);
    if (file) return file;
    if (errno == ENOENT || errno == ENOTDIR)
        throw Error(ExitCode::bad_data, fmt::format("{}: missing", path.string()));
    io_failed(path, "cannot be opened", errno);
}

std::int64_t read_at(int descriptor, void* target, std::uint64_t bytes, std::uint64_t offset, Pulse& pulse) {
    std::uint64_t done = 0;
    while (done < bytes) {
        const auto got = try_again([&] {
            return ::pread(descriptor, static_cast<char*>(target) + done, std::min(kBlock, bytes - done),
                           static_cast<off_t>(offset + done));
        });
        if (got < 0) return -1;
        if (got == 0) break;
        done += static_cast<std::uint64_t>(got);
        pulse.beat();
    }
    return static_cast<std::int64_t>(done);
}

bool write_at(int descriptor, const void* source, std::uint64_t bytes, std::uint64_t offset, Pulse& pulse) {
    for (std::uint64_t done = 0; done < bytes;) {
        const auto put = ::pwrite(descriptor, static_cast<const char*>(source) + done,
                                  std::min(kBlock, bytes - done), static_cast<off_t>(offset + done));
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return false;
        done += static_cast<std::uint64_t>(put);
        pulse.beat();
    }
    return true;
}

namespace {

[[noreturn]] void no_room(const fs::path& path, std::uint64_t bytes, int number) {
    io_failed(path, fmt::format("no room could be reserved for {} MiB", (bytes >> 20) + 1), number);
}

/// For a file system without fallocate. posix_fallocate would write a byte into every block of the file
/// there, one after another over the network.
void set_size_in_free_space(const fs::path& path, const Descriptor& file, std::uint64_t bytes) {
    static std::once_flag logged;
    std::call_once(logged, [&] {
        log::info("{}: its file system cannot reserve space; only the free space is checked before a write",
                  path.string());
    });
    struct statvfs space = {};
    if (::fstatvfs(file.get(), &space) == 0 && std::uint64_t{space.f_bavail} * space.f_frsize < bytes)
        no_room(path, bytes, ENOSPC);
    if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) no_room(path, bytes, errno);
}

}  // namespace

void reserve_space(const fs::path& path, const Descriptor& file, std::uint64_t bytes, Pulse& pulse) {
    for (std::uint64_t at = 0; at < bytes;) {
        const std::uint64_t part = std::min(kReserveAtOnce, bytes - at);
        if (::fallocate(file.get(), 0, static_cast<off_t>(at), static_cast<off_t>(part)) == 0) {
            at += part;
            pulse.beat();
        } else if (errno == EOPNOTSUPP || errno == ENOSYS) {
            return set_size_in_free_space(path, file, bytes);
        } else if (errno != EINTR) {
            no_room(path, bytes, errno);
        }
    }
}

std::string read_text(const fs::path& path) {
    const Descriptor file = open_to_read(path);
    Pulse quiet;
    std::string text, block(kBlock, '\0');
    for (;;) {
        const auto got = read_at(file.get(), block.data(), block.size(), text.size(), quiet);
        if (got < 0) io_failed(path, "cannot be read", errno);
        text.append(block, 0, static_cast<std::size_t>(got));
        if (static_cast<std::uint64_t>(got) < block.size()) return text;
    }
}

Descriptor open_to_compare(const fs::path& path) {
    Descriptor file = open_retrying(path, O_RDONLY);
    if (!file) io_failed(path, "cannot be opened to compare it", errno);
    ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);  // advice: a file system may ignore it
    return file;
}

void write_text_durably(const fs::path& path, const std::string& text) {
    const fs::path partial = path.string() + ".partial";
    Pulse quiet;
    try {
        {
            const Descriptor file(partial, O_WRONLY | O_CREAT | O_TRUNC);
            if (!file || !write_at(file.get(), text.data(), text.size(), 0, quiet) ||
                ::fsync(file.get()) != 0)
                io_failed(partial, "cannot be written", errno);
        }
        const Descriptor file = open_to_compare(partial);
        std::string read(text.size() + 1, '\0');  // a file that is longer differs, too
        const std::int64_t got = read_at(file.get(), read.data(), read.size(), 0, quiet);
        if (got < 0) io_failed(partial, "cannot be read back", errno);
        read.resize(static_cast<std::size_t>(got));
        if (read != text)
            throw Error(ExitCode::io_error,
                        fmt::format("{}: what was read back is not what was written; check the disk, then "
                                    "run again",
                                    partial.string()));
        std::error_code error;
        fs::rename(partial, path, error);
        if (error) io_failed(path, "cannot be renamed", error.value());
    } catch (const Error&) {
        std::error_code ignored;
        fs::remove(partial, ignored);
        throw;
    }
}

void sync(const fs::path& path) {
    const Descriptor file(path, O_RDONLY);
    if (!file || ::fsync(file.get()) != 0) io_failed(path, "cannot be synced to the disk", errno);
}

std::uint64_t size_of(const fs::path& path, const Descriptor& file) {
    struct stat found = {};
    if (::fstat(file.get(), &found) != 0) io_failed(path, "cannot be read", errno);
    return static_cast<std::uint64_t>(found.st_size);
}

void add_to_hash(const fs::path& path, const Descriptor& file, std::uint64_t offset, std::uint64_t bytes,
                 AdHash& hash, Pulse& pulse) {
    std::vector<char> block(std::min(kBlock, bytes));
    for (std::uint64_t done = 0; done < bytes;) {
        const std::uint64_t wanted = std::min(kBlock, bytes - done);
        const auto got = read_at(file.get(), block.data(), wanted, offset + done, pulse);
        if (got < 0) io_failed(path, "cannot be read", errno);
        hash.add(block.data(), static_cast<std::uint64_t>(got), offset + done);
        done += static_cast<std::uint64_t>(got);
        if (static_cast<std::uint64_t>(got) < wanted) return;
    }
}

}  // namespace maestro::storage
