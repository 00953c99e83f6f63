// How HDF5 reaches its files: a file driver of our own, plain pread and pwrite, because the library's serial
// one hides a full disk and crashes at the end of the program after a failed flush, and says nothing while it
// writes for minutes. This one never fails towards HDF5 when it writes, and remembers the first failure
// instead.
#pragma once

#include <hdf5.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "base/pulse.hpp"

namespace maestro::io {

inline constexpr std::uint64_t kPage = 4096;

/// Of one open file; the driver points to it, so it outlives the handle.
struct DriverState {
    Pulse* pulse = nullptr;
    /// Writes stay here, the file is not touched.
    bool hold = false;
    std::map<std::uint64_t, std::array<std::byte, kPage>> pages{};  ///< held, by their number in the file
    std::uint64_t end = 0;                                          ///< size of the file when it was closed
    int failed = 0;                                                 ///< errno of the first call that failed
    std::string what{};                                             ///< and what it was: "cannot be written"
};

/// Makes files that are opened with `access` go through the driver.
void set_driver(hid_t access, DriverState& state);

}  // namespace maestro::io
