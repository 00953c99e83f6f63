// An HDF5 file that is changed in place, wholly or not at all: the new pages go into PATH.journal first, so a
// process that is killed leaves the file as it was, or a journal that brings it to what it was to be.
#pragma once

#include <filesystem>
#include <functional>

#include "io/hdf5.hpp"

namespace maestro::io {

using Change = std::function<void(hid_t)>;

/// A new file under its final name, in the place of an older one.
void create_whole(const std::filesystem::path& path, Pulse& pulse, const Change& fill);
/// Error(io_error) where it cannot be written, a full disk for one, and the file is as it was;
/// Error(bad_data) where it is damaged.
void change_whole(const std::filesystem::path& path, Pulse& pulse, const Change& change);
/// Finishes what a killed process had begun; change_whole() does so by itself.
void finish_change(const std::filesystem::path& path);

}  // namespace maestro::io
