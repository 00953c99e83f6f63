// Atomic changes of an HDF5 file in place: the new pages are written to PATH.journal first, so a process that
// is killed leaves either the unchanged file, or a journal that completes the change.
#pragma once

#include <filesystem>
#include <functional>

#include "io/hdf5.hpp"

namespace maestro::io {

using Change = std::function<void(hid_t)>;

/// Creates a file under its final name, replacing an older one.
void create_whole(const std::filesystem::path& path, Pulse& pulse, const Change& fill);
/// Throws storage::NoRoom if the disk is full; the file is then unchanged. Error(io_error) if it cannot be
/// written for another reason, Error(bad_data) if it is damaged.
void change_whole(const std::filesystem::path& path, Pulse& pulse, const Change& change);
/// Finishes a change that a killed process had started; change_whole() does so by itself.
void finish_change(const std::filesystem::path& path);

}  // namespace maestro::io
