// The file driver through which HDF5 reads and writes: plain pread and pwrite. The library's serial driver
// hides a full disk, crashes at the end of the program after a failed flush, and gives no sign of life while
// it writes for minutes. This one tries failed reads again, reports no failed write to HDF5, and remembers
// the first failure instead.
#pragma once

#include <hdf5.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "base/pulse.hpp"

namespace maestro::storage {

inline constexpr std::uint64_t kPage = 4096;

/// State of one open file. The driver points to it, so it must outlive the handle.
struct DriverState {
    Pulse* pulse = nullptr;
    /// Writes are kept in `pages`, and the file is not changed.
    bool hold = false;
    std::map<std::uint64_t, std::array<std::byte, kPage>> pages{};  ///< held, by their number in the file
    std::uint64_t end = 0;                                          ///< size of the file when it was closed
    int failed = 0;                                                 ///< errno of the first call that failed
    std::string what{};                                             ///< and what it was: "cannot be written"
};

/// Makes files that are opened with `access` go through the driver.
void set_driver(hid_t access, DriverState& state);

}  // namespace maestro::storage
