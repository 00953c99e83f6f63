// Writes the files of a checkpoint without HDF5 and without MPI, so that a thread can do it while the main
// thread trains. Several ranks write one file together, each its elements. None waits for another: each opens
// the file, or makes it if it is the first.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/adhash.hpp"
#include "base/pulse.hpp"
#include "base/shard.hpp"
#include "io/file_image.hpp"
#include "storage/file.hpp"

namespace maestro::io {

/// One rank's part of a file. All functions throw Error(io_error), also where the pulse says that the work is
/// cancelled. First everything is written, then synced, then read back.
class FileWriter {
public:
    FileWriter(const std::filesystem::path& partial, const std::string& file, Pulse& pulse);

    /// Takes the room for the whole file on the disk and writes the image. One rank does this.
    void write(const FileImage& image);
    /// Of an array of this shape that begins at byte `place`, the shard's elements [held.begin, held.end),
    /// which are `values`.
    void write(std::uint64_t place, const std::vector<std::int64_t>& shape, const Shard& shard, Range held,
               const float* values);
    /// Returns when everything that was written is on the disk.
    void sync();

    /// Reads the same bytes back as write() wrote.
    void read_back(const FileImage& image);
    void read_back(std::uint64_t place, const std::vector<std::int64_t>& shape, const Shard& shard,
                   Range held);
    /// Compares what was read back with what was written.
    void verify() const;

    std::uint64_t hash() const { return written_.value(); }  ///< AdHash of what was written
    std::int64_t elements() const { return elements_; }      ///< of arrays, written so far

private:
    void write_bytes(const void* source, std::uint64_t bytes, std::uint64_t offset);
    void read_bytes(std::uint64_t bytes, std::uint64_t offset);
    [[noreturn]] void failed(const char* what) const;
    void check_wanted() const;

    std::filesystem::path path_;
    Pulse& pulse_;
    storage::Descriptor file_;
    std::uint64_t unsynced_ = 0;  ///< bytes
    std::int64_t elements_ = 0;
    AdHash written_, read_;
    std::vector<std::byte> block_;  ///< for reading back
};

}  // namespace maestro::io
