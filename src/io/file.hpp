// Files read and written by plain calls. A file that is not what it should be (Error(bad_data)) is told from
// one that cannot be read now (Error(io_error)): the first may be passed over, the second never.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/pulse.hpp"

namespace maestro::io {

/// Owns a file descriptor.
class Descriptor {
public:
    Descriptor() = default;
    /// Closed on exec; invalid (with errno) where it cannot be opened.
    Descriptor(const std::filesystem::path& path, int flags);
    ~Descriptor();
    Descriptor(Descriptor&& other) noexcept;
    Descriptor& operator=(Descriptor&& other) noexcept;
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    explicit operator bool() const { return value_ >= 0; }
    int get() const { return value_; }

private:
    int value_ = -1;
};

/// Opens for reading. A missing file is Error(bad_data); whatever else fails is tried again, then
/// Error(io_error).
Descriptor open_to_read(const std::filesystem::path& path);
/// Bytes read at `offset`, fewer than asked only at the end of the file; tried again where it fails, then -1
/// with errno.
std::int64_t read_at(int descriptor, void* target, std::uint64_t bytes, std::uint64_t offset, Pulse& pulse);
/// All of it, or false with errno.
bool write_at(int descriptor, const void* source, std::uint64_t bytes, std::uint64_t offset, Pulse& pulse);

/// Gives the file `bytes` on the disk, in slices: a file system may write the room that it gives.
/// Error(io_error).
void take_room(const std::filesystem::path& path, const Descriptor& file, std::uint64_t bytes, Pulse& pulse);

/// Bytes after which a writer of large files syncs: the page cache would take them all, and then one fsync
/// minutes in which nothing is said.
inline constexpr std::uint64_t kSyncEvery = 64 << 20;

/// A whole text file, errors as of open_to_read.
std::string read_text(const std::filesystem::path& path);
/// Written, synced and renamed from PATH.partial. Error(io_error).
void write_text_durably(const std::filesystem::path& path, const std::string& text);
/// A file's, or a directory's, contents are on the disk. Error(io_error).
void sync(const std::filesystem::path& path);

/// Size and XXH64 of a file as it can be read back.
struct Fingerprint {
    std::uint64_t bytes = 0, hash = 0;
};
Fingerprint fingerprint(const std::filesystem::path& path, Pulse& pulse);

/// Throws Error(io_error): "PATH: WHAT: " and the message of `number` (an errno).
[[noreturn]] void io_failed(const std::filesystem::path& path, const std::string& what, int number);

}  // namespace maestro::io
