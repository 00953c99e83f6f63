// Files through plain system calls, for all that reads and writes large files. A file with wrong content
// (Error(bad_data)) and a file that cannot be read at the moment (Error(io_error)) are different errors: a
// search for checkpoints may skip the first, never the second.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/adhash.hpp"
#include "base/error.hpp"
#include "base/pulse.hpp"

namespace maestro::storage {

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

/// Opens with these flags. A failure that may pass is tried again for two seconds; then the result is
/// invalid, with errno.
Descriptor open_retrying(const std::filesystem::path& path, int flags);
/// Opens for reading. A missing file is Error(bad_data), any other failure Error(io_error).
Descriptor open_to_read(const std::filesystem::path& path);
/// The advisory lock that HDF5 takes when it opens a file (flock): shared for readers, exclusive for one
/// writer. Held as long as this object lives.
class FileLock {
public:
    enum class Kind { shared, exclusive };
    /// `file` outlives the lock. Where others hold it, waits for a fifth of a second. Has no lock if they
    /// keep it, if the file system has none, or if HDF5_USE_FILE_LOCKING is FALSE, as for HDF5.
    FileLock(const Descriptor& file, Kind kind);
    ~FileLock();
    FileLock(const FileLock&) = delete;
    FileLock& operator=(const FileLock&) = delete;
    bool held() const { return held_; }

private:
    int file_;
    bool held_ = false;
};

/// Whether an errno says that the file is missing or must not be opened, and not that storage fails.
bool is_lasting(int number);
/// Returns the number of bytes read at `offset`, fewer than asked for only at the end of the file. A failure
/// that may pass is tried again for two seconds; then the result is -1, with errno. Beats after every MiB.
std::int64_t read_at(int descriptor, void* target, std::uint64_t bytes, std::uint64_t offset, Pulse& pulse);
/// Writes all bytes; false with errno on failure.
bool write_at(int descriptor, const void* source, std::uint64_t bytes, std::uint64_t offset, Pulse& pulse);

/// Reserves `bytes` on the disk for a new file, in steps with a beat after each. On a file system that cannot
/// reserve (some network file systems), checks the free space instead, sets the file's size, and says so in
/// the log. Error(io_error) if there is no room.
void reserve_space(const std::filesystem::path& path, const Descriptor& file, std::uint64_t bytes,
                   Pulse& pulse);

/// A writer of large files syncs after this many bytes. Otherwise the page cache takes them all, and a single
/// fsync at the end runs for minutes without a beat.
inline constexpr std::uint64_t kSyncEvery = 64 << 20;

/// Reads a whole text file; errors as for open_to_read().
std::string read_text(const std::filesystem::path& path);
/// Opens a file that has been synced, to compare it with what was written: its pages leave the system's cache
/// first where the file system allows it, so that reading asks the disk. Error(io_error).
Descriptor open_to_compare(const std::filesystem::path& path);
/// Writes PATH.partial, syncs it, reads it back, compares, and renames it to PATH. Error(io_error); then
/// PATH.partial is removed.
void write_text_durably(const std::filesystem::path& path, const std::string& text);
/// Returns when the contents of a file or a directory are on the disk. Error(io_error).
void sync(const std::filesystem::path& path);

/// Returns the size of an open file. Error(io_error).
std::uint64_t size_of(const std::filesystem::path& path, const Descriptor& file);
/// Adds these bytes of the file to `hash`, as far as it has them. Error(io_error).
void add_to_hash(const std::filesystem::path& path, const Descriptor& file, std::uint64_t offset,
                 std::uint64_t bytes, AdHash& hash, Pulse& pulse);

/// A disk, a quota or a limit of file sizes leaves no room for what is to be written. Who can go on without
/// it catches this error, which is otherwise an Error(io_error).
class NoRoom : public Error {
public:
    explicit NoRoom(const std::string& fault)
        : Error(ExitCode::io_error, fault + "; free space, then run again"), fault_(fault) {}
    const std::string& fault() const { return fault_; }  ///< the message without what to do

private:
    std::string fault_;
};

/// Throws Error(io_error): "PATH: WHAT: " and the message of `number` (an errno). NoRoom where that says so.
[[noreturn]] void io_failed(const std::filesystem::path& path, const std::string& what, int number);

}  // namespace maestro::storage
