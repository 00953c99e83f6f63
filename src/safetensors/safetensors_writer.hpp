// SafetensorsWriter: one rank's part of writing the weights of a model folder. Ranks write their elements of
// the same files in parallel. Files have a temporary name until all are whole.
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

/// One rank calls prepare(); after that all ranks write(), sync() and perhaps verify(); when all have done
/// so, one rank calls publish(). The caller lets ranks wait for each other in between. All functions throw
/// Error(io_error) where storage fails or the pulse says that the work is cancelled.
class SafetensorsWriter {
public:
    /// `layout` and `pulse` outlive the writer.
    SafetensorsWriter(const std::filesystem::path& folder, const OutputLayout& layout, Pulse& pulse);

    /// Creates the folder, reserves the room for all files on the disk and writes their headers. Throws
    /// Error(cannot_create) where the folder cannot be made or holds weights already.
    void prepare();
    /// For each extent, element `logical` + i of the tensor becomes values[local + i], rounded to the
    /// tensor's type. Uses 1 MiB of memory. Throws Error(bad_data) for a value that is NaN or Inf, or too
    /// large for the type.
    void write(std::size_t tensor, std::span<const Extent> extents, const float* values);
    /// Returns when everything that was written is on the disk.
    void sync();
    /// After sync(), with the arguments of a write(): reads its bytes back and compares them. Throws
    /// Error(io_error) where they differ.
    void verify(std::size_t tensor, std::span<const Extent> extents, const float* values);
    /// From any thread, and as often as wanted, before publish(): removes the unfinished files, also those of
    /// other ranks, and the folder where prepare() of this rank has made it. No file is made after that.
    void discard() noexcept;
    /// Gives the files their names, the index last, so that a folder with all names is whole.
    void publish();

private:
    struct Output {
        storage::Descriptor file{};    ///< for writing only
        storage::Descriptor reader{};  ///< for verify()
        std::uint64_t unsynced = 0;    ///< bytes
    };
    std::filesystem::path partial(std::size_t file) const;
    Output& output(std::size_t file);
    template <class Body>
    void for_each_block(std::size_t tensor, std::span<const Extent> extents, const float* values,
                        Body&& body);
    void write_bytes(std::size_t file, const void* source, std::uint64_t bytes, std::uint64_t offset);
    void sync(std::size_t file);
    void check_wanted(std::size_t file) const;
    void clear_folder() const;

    std::filesystem::path folder_;
    const OutputLayout& layout_;
    Pulse& pulse_;
    std::vector<Output> outputs_;
    mutable std::mutex making_;  ///< held while files are made or removed; guards the next two
    mutable bool made_folder_ = false;
    bool discarded_ = false;
    std::vector<std::byte> block_{}, read_{};  ///< converted elements, and those read back
};

}  // namespace maestro::safetensors
