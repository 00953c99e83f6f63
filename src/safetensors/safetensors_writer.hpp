// SafetensorsWriter: one rank's part of writing the weights of a model folder. Ranks write their elements of
// the same files in parallel. Files have a temporary name until all are whole and were read back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <span>
#include <vector>

#include "base/pulse.hpp"
#include "base/shard.hpp"
#include "safetensors/output_layout.hpp"
#include "storage/file.hpp"

namespace maestro::safetensors {

/// One rank calls prepare(); after that all ranks write(), sync() and verify(); when all have done so, the
/// first one calls publish(). The caller lets ranks wait for each other in between. All functions throw
/// Error(io_error) where storage fails or the pulse says that the work is cancelled.
class SafetensorsWriter {
public:
    /// `layout` and `pulse` outlive the writer.
    SafetensorsWriter(const std::filesystem::path& folder, const OutputLayout& layout, Pulse& pulse);
    /// Removes the files that prepare() made, unless they were published, and the folder if it made that.
    ~SafetensorsWriter();
    SafetensorsWriter(const SafetensorsWriter&) = delete;
    SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

    /// Creates the folder, reserves the room for all files on the disk and writes their headers. Throws
    /// Error(cannot_create) where the folder cannot be made or holds weights already.
    void prepare();
    /// For each extent, element `logical` + i of the tensor becomes values[local + i stride], rounded to the
    /// tensor's type. Those with a stride that follow each other in the tensor are written together.
    /// Uses at most 3 MiB of memory, and 40 bytes for each MiB or separate extent that it writes. Throws
    /// Error(bad_data) for a value that is NaN or Inf, or too large for the type.
    void write(std::size_t tensor, std::span<const Extent> extents, const float* values);
    /// Returns when everything that was written is on the disk.
    void sync();
    /// After sync(): reads back from the disk what this rank wrote and compares hashes. Throws
    /// Error(io_error) with the name of the tensor where they differ.
    void verify();
    /// From any thread, and as often as wanted, before publish(): removes the unfinished files, also those of
    /// other ranks, and the folder where prepare() of this rank has made it. No file is made after that.
    void discard() noexcept;
    /// Gives the files their names, the index last, so that a folder with all names is whole.
    void publish();

private:
    struct Output {
        storage::Descriptor file{};  ///< for writing only
        std::uint64_t unsynced = 0;  ///< bytes
    };
    /// What one call of the system wrote, until verify() has seen it on the disk.
    struct Written {
        std::size_t file, tensor;  ///< kHeader: no tensor
        std::uint64_t offset, bytes, hash;
    };
    static constexpr std::size_t kHeader = static_cast<std::size_t>(-1);

    std::filesystem::path partial(std::size_t file) const;
    Output& output(std::size_t file);
    void write_block(std::size_t tensor, std::int64_t first, const float* values, std::int64_t count);
    void write_bytes(std::size_t file, std::size_t tensor, const void* source, std::uint64_t bytes,
                     std::uint64_t offset);
    void compare(const Written& written, const storage::Descriptor& file);
    void sync(std::size_t file);
    void check_wanted(std::size_t file) const;
    void clear_folder();

    std::filesystem::path folder_;
    const OutputLayout& layout_;
    Pulse& pulse_;
    std::vector<Output> outputs_;
    std::vector<Written> written_{};
    std::vector<std::byte> block_{};  ///< converted elements, or those read back
    std::vector<float> gathered_{};   ///< elements of several extents, to be written together
    std::mutex making_{};             ///< held while files are made or removed; guards what follows
    bool made_folder_ = false;
    bool discarded_ = false;
    std::size_t made_files_ = 0;  ///< by prepare(), which are not published
};

}  // namespace maestro::safetensors
