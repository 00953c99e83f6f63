// The bytes of a file of a checkpoint that HDF5 determines, made in memory by the thread that uses HDF5.
// Writing them to the disk needs no HDF5.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "storage/hdf5_driver.hpp"

namespace maestro::io {

struct FileImage {
    struct Block {
        std::uint64_t offset = 0;
        std::vector<std::byte> bytes;
    };
    std::string file;           ///< its name within the checkpoint
    std::uint64_t bytes = 0;    ///< its size
    std::vector<Block> blocks;  ///< ascending; what they leave out are the elements of arrays
};

/// Bytes of a file that hold the elements of an array.
struct ArrayBytes {
    std::uint64_t offset = 0, bytes = 0;
};

/// Returns the image of a file that was held in memory and closed: all of it but `arrays`.
FileImage image_of(std::string file, const storage::DriverState& held, std::vector<ArrayBytes> arrays = {});

}  // namespace maestro::io
