// A section's file of a checkpoint before it is written: HDF5 lays it out in memory, with room for every
// array. The ranks of the section then write it together (file_writer.hpp).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/pulse.hpp"
#include "io/file_image.hpp"

namespace maestro::io {

/// A parameter as the file holds it, whole.
struct StoredParameter {
    std::string name;
    std::vector<std::int64_t> shape;
    bool moments = false;  ///< whether the file has both moments of the optimizer as well
};

/// Byte offsets of a parameter's arrays in the file, by Stored; 0 for an array that the file does not have.
using ArrayPlaces = std::array<std::uint64_t, 3>;

struct SectionImage {
    FileImage image;
    std::vector<ArrayPlaces> places;  ///< by parameter; multiples of AdHash::kWord
};

std::string file_of_section(const std::string& section);  ///< its name within a checkpoint

/// Lays out the file of a section. Everything but the value of the attribute `step` follows from the name and
/// the parameters.
SectionImage describe_section(const std::string& section, std::int64_t step,
                              std::span<const StoredParameter> parameters, Pulse& pulse);

}  // namespace maestro::io
