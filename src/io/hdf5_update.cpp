#include "io/hdf5_update.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "io/run_directory.hpp"
#include "storage/file.hpp"

namespace maestro::io {

using storage::kPage;

namespace fs = std::filesystem;

namespace {

constexpr char kMagic[8] = {'m', 'a', 'e', 's', 't', 'r', 'o', 'J'};

/// Before the pages, each of which is its number and its bytes. In the order of this machine's bytes: a
/// journal does not leave it.
struct Header {
    char magic[8];
    std::uint64_t size;   ///< of the file when all is done
    std::uint64_t pages;  ///< how many
    std::uint64_t hash;   ///< XXH64 of what follows
};

fs::path journal_of(const fs::path& path) {
    return path.string() + ".journal";
}

std::uint64_t size_of(const storage::Descriptor& file) {
    struct stat found = {};
    return ::fstat(file.get(), &found) == 0 ? static_cast<std::uint64_t>(found.st_size) : 0;
}

/// Drops the pages that are in the file already: HDF5 writes chunks as a whole.
void drop_unchanged(const storage::Descriptor& file,
                    std::map<std::uint64_t, std::array<std::byte, kPage>>& pages, Pulse& pulse) {
    std::array<std::byte, kPage> old;
    std::erase_if(pages, [&](const auto& page) {
        return storage::read_at(file.get(), old.data(), kPage, page.first * kPage, pulse) ==
                   static_cast<std::int64_t>(kPage) &&
               std::memcmp(old.data(), page.second.data(), kPage) == 0;
    });
}

/// Writes the last page first, so that the superblock, which says how long the file is, comes after what it
/// promises. The last page is cut where the file ends.
bool write_pages(const storage::Descriptor& file, const char* records, std::uint64_t count,
                 std::uint64_t size, Pulse& pulse) {
    for (std::uint64_t i = count; i-- > 0;) {
        const char* const record = records + i * (sizeof(std::uint64_t) + kPage);
        std::uint64_t number = 0;
        std::memcpy(&number, record, sizeof number);
        if (number * kPage >= size) continue;
        const std::uint64_t bytes = std::min(kPage, size - number * kPage);
        if (!storage::write_at(file.get(), record + sizeof number, bytes, number * kPage, pulse))
            return false;
    }
    return ::ftruncate(file.get(), static_cast<off_t>(size)) == 0;
}

std::string records_of(const std::map<std::uint64_t, std::array<std::byte, kPage>>& pages) {
    std::string records;
    records.reserve(pages.size() * (sizeof(std::uint64_t) + kPage));
    for (const auto& [number, bytes] : pages) {
        records.append(reinterpret_cast<const char*>(&number), sizeof number);
        records.append(reinterpret_cast<const char*>(bytes.data()), kPage);
    }
    return records;
}

[[noreturn]] void write_failed(const fs::path& path, int number) {
    storage::io_failed(path, "cannot be written", number);
}

}  // namespace

void create_whole(const fs::path& path, Pulse& pulse, const Change& fill) {
    const fs::path partial = path.string() + ".partial";
    std::error_code ignored;
    fs::remove(partial, ignored);
    File file = File::held(partial, pulse);
    fill(file);
    file.close();
    const storage::DriverState& state = file.state();
    const std::string records = records_of(state.pages);
    {
        const storage::Descriptor target(partial, O_WRONLY | O_CREAT | O_TRUNC);
        if (!target || !write_pages(target, records.data(), state.pages.size(), state.end, pulse) ||
            ::fsync(target.get()) != 0) {
            const int number = errno;
            fs::remove(partial, ignored);
            write_failed(path, number);
        }
    }
    fs::remove(journal_of(path), ignored);  // of a file that is replaced
    std::error_code error;
    fs::rename(partial, path, error);
    if (error) storage::io_failed(path, "cannot be renamed", error.value());
}

void finish_change(const fs::path& path) {
    const fs::path journal = journal_of(path);
    std::error_code ignored;
    if (!fs::exists(journal, ignored)) return;
    const std::string text = storage::read_text(journal);
    Header header = {};
    const std::string_view records = std::string_view(text).substr(std::min(sizeof header, text.size()));
    if (text.size() >= sizeof header) std::memcpy(&header, text.data(), sizeof header);
    if (std::memcmp(header.magic, kMagic, sizeof kMagic) == 0 &&
        header.pages == records.size() / (sizeof(std::uint64_t) + kPage) &&
        XXH64(records.data(), records.size(), 0) == header.hash) {
        const storage::Descriptor file(path, O_WRONLY);
        if (!file) write_failed(path, errno);
        const storage::FileLock lock(file, storage::FileLock::Kind::exclusive);
        Pulse quiet;
        if (!write_pages(file, records.data(), header.pages, header.size, quiet)) write_failed(path, errno);
    }
    fs::remove(journal, ignored);
}

void change_whole(const fs::path& path, Pulse& pulse, const Change& change) {
    finish_change(path);
    File held(path, File::Mode::hold, pulse);
    held.read([&](hid_t file) { change(file); });
    held.close();
    storage::DriverState state = held.state();
    const storage::Descriptor file(path, O_RDWR);
    if (!file) write_failed(path, errno);
    drop_unchanged(file, state.pages, pulse);
    const std::string records = records_of(state.pages);
    Header header{.magic = {},
                  .size = state.end,
                  .pages = state.pages.size(),
                  .hash = XXH64(records.data(), records.size(), 0)};
    std::memcpy(header.magic, kMagic, sizeof kMagic);
    // Room for both, before either is touched. Not all file systems can promise it; then the journal is the
    // promise.
    const std::uint64_t size = size_of(file);
    check_free_space(path.parent_path(), records.size() + (state.end > size ? state.end - size : 0));
    if (state.end > size &&
        ::fallocate(file.get(), FALLOC_FL_KEEP_SIZE, static_cast<off_t>(size),
                    static_cast<off_t>(state.end - size)) != 0 &&
        errno != EOPNOTSUPP && errno != ENOSYS)
        write_failed(path, errno);
    const fs::path journal = journal_of(path), partial = journal.string() + ".partial";
    const bool written = [&] {
        const storage::Descriptor target(partial, O_WRONLY | O_CREAT | O_TRUNC);
        return target && storage::write_at(target.get(), &header, sizeof header, 0, pulse) &&
               storage::write_at(target.get(), records.data(), records.size(), sizeof header, pulse);
    }();
    const int number = errno;
    std::error_code error;
    if (written) fs::rename(partial, journal, error);
    if (!written || error) {
        std::error_code ignored;
        fs::remove(partial, ignored);
        if (::ftruncate(file.get(), static_cast<off_t>(size)) != 0)
            write_failed(path, errno);  // gives the room back
        write_failed(path, written ? error.value() : number);
    }
    // HDF5 takes the same lock when it opens the file, so that nobody reads half of the change. A reader that
    // keeps the file open must not stop the run: after a moment the change is made all the same.
    const storage::FileLock lock(file, storage::FileLock::Kind::exclusive);
    if (!write_pages(file, records.data(), header.pages, header.size, pulse))
        // No NoRoom: the change is not undone, the journal completes it.
        throw Error(ExitCode::io_error,
                    fmt::format("{}: cannot be written: {}", path.string(), std::strerror(errno)));
    fs::remove(journal, error);
}

}  // namespace maestro::io
