// A section's file of a checkpoint, which all ranks of the section write together: one of them makes it, with
// room for every array; each writes the elements that it answers for, past HDF5, which neither waits nor
// needs MPI; then the one who made it looks at the whole.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/pulse.hpp"
#include "base/shard.hpp"
#include "io/checkpoint.hpp"
#include "storage/file.hpp"

namespace maestro::io {

/// A parameter as the file holds it, whole.
struct StoredParameter {
    std::string name;
    std::vector<std::int64_t> shape;
    bool moments = false;  ///< whether the file has both moments of the optimizer as well
};

/// Byte offsets of a parameter's arrays in the file, by Stored; 0 for an array that the file does not have.
using ArrayPlaces = std::array<std::uint64_t, 3>;

struct SectionFile {
    std::uint64_t bytes = 0;
    std::vector<ArrayPlaces> places;  ///< by parameter
};

/// Makes PARTIAL/SECTION.h5, all elements 0, and takes the room for it on the disk: who writes it later finds
/// it. Its bytes follow from the arguments alone. Error(io_error).
SectionFile create_section(const std::filesystem::path& partial, const std::string& section,
                           std::int64_t step, std::span<const StoredParameter> parameters, Pulse& pulse);

/// Writes elements of a file that create_section has made, here or on another rank. Error(io_error).
class SectionWriter {
public:
    SectionWriter(const std::filesystem::path& partial, const std::string& section, Pulse& pulse);

    /// Of an array of this shape that begins at `place`, the shard's elements [held.begin, held.end), which
    /// are `values`.
    void write(std::uint64_t place, const std::vector<std::int64_t>& shape, const Shard& shard, Range held,
               const float* values);
    /// Returns when everything that was written is on the disk.
    void sync();
    std::int64_t elements() const { return elements_; }  ///< written so far

private:
    std::filesystem::path path_;
    Pulse& pulse_;
    storage::Descriptor file_;
    std::uint64_t unsynced_ = 0;  ///< bytes
    std::int64_t elements_ = 0;
};

/// Reads the file back, because a full disk is not always reported. Error(io_error) where it has not `bytes`.
ManifestEntry verify_section(const std::filesystem::path& partial, const std::string& section,
                             std::uint64_t bytes, Pulse& pulse);

}  // namespace maestro::io
