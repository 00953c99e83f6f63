#include "io/file_writer.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/check.hpp"
#include "base/error.hpp"

namespace maestro::io {

namespace fs = std::filesystem;

namespace {
/// Bytes between two looks at whether the work is cancelled. A block stays in the cache from its hash to its
/// write.
constexpr std::uint64_t kBlock = 1 << 20;
}  // namespace

// For writing only: a network file system that has read a page may later send back all of it, and what
// another rank wrote there is lost.
FileWriter::FileWriter(const fs::path& partial, const std::string& file, Pulse& pulse)
    : path_(partial / file), pulse_(pulse), file_(path_, O_WRONLY | O_CREAT) {
    pulse.doing(fmt::format("writing {}", path_.string()));
    if (!file_) failed("cannot be opened");
}

void FileWriter::failed(const char* what) const {
    storage::io_failed(path_, what, errno);
}

void FileWriter::check_wanted() const {
    if (pulse_.cancelled())
        throw Error(ExitCode::io_error,
                    fmt::format("{}: given up, because another rank failed", path_.string()));
}

void FileWriter::write(const FileImage& image) {
    storage::reserve_space(path_, file_, image.bytes, pulse_);
    for (const FileImage::Block& block : image.blocks)
        write_bytes(block.bytes.data(), block.bytes.size(), block.offset);
}

void FileWriter::write(std::uint64_t place, const std::vector<std::int64_t>& shape, const Shard& shard,
                       Range held, const float* values) {
    MAESTRO_CHECK(place > 0, "{}: no such array", path_.string());
    for (const Extent& extent : extents_of(shape, shard, held)) {
        write_bytes(values + (extent.local - held.begin),
                    static_cast<std::uint64_t>(extent.count) * sizeof(float),
                    place + static_cast<std::uint64_t>(extent.logical) * sizeof(float));
        elements_ += extent.count;
    }
}

void FileWriter::write_bytes(const void* source, std::uint64_t bytes, std::uint64_t offset) {
    for (std::uint64_t done = 0; done < bytes; done += kBlock) {
        check_wanted();
        const auto* const block = static_cast<const std::byte*>(source) + done;
        const std::uint64_t size = std::min(kBlock, bytes - done);
        written_.add(block, size, offset + done);
        if (!storage::write_at(file_.get(), block, size, offset + done, pulse_)) failed("cannot be written");
        unsynced_ += size;
        if (unsynced_ >= storage::kSyncEvery) sync();
    }
}

void FileWriter::sync() {
    check_wanted();
    if (::fsync(file_.get()) != 0) failed("cannot be synced to the disk");
    unsynced_ = 0;
    pulse_.beat();
}

void FileWriter::read_back(const FileImage& image) {
    for (const FileImage::Block& block : image.blocks) read_bytes(block.bytes.size(), block.offset);
}

void FileWriter::read_back(std::uint64_t place, const std::vector<std::int64_t>& shape, const Shard& shard,
                           Range held) {
    for (const Extent& extent : extents_of(shape, shard, held))
        read_bytes(static_cast<std::uint64_t>(extent.count) * sizeof(float),
                   place + static_cast<std::uint64_t>(extent.logical) * sizeof(float));
}

void FileWriter::read_bytes(std::uint64_t bytes, std::uint64_t offset) {
    if (block_.empty()) {
        block_.resize(kBlock);
        file_ = storage::open_retrying(path_, O_RDONLY);
        if (!file_) failed("cannot be opened");
    }
    for (std::uint64_t done = 0; done < bytes; done += kBlock) {
        check_wanted();
        const std::uint64_t size = std::min(kBlock, bytes - done);
        const std::int64_t got = storage::read_at(file_.get(), block_.data(), size, offset + done, pulse_);
        if (got < 0) failed("cannot be read back");
        read_.add(block_.data(), static_cast<std::uint64_t>(got), offset + done);
    }
}

void FileWriter::verify() const {
    if (read_.value() != written_.value())
        throw Error(ExitCode::io_error,
                    fmt::format("{}: what was read back is not what was written; check the disk, then run "
                                "again with --resume auto",
                                path_.string()));
}

}  // namespace maestro::io
