// The class File of hdf5.hpp.
#include <fmt/format.h>

#include <cerrno>

#include "base/adhash.hpp"
#include "io/hdf5.hpp"
#include "storage/file.hpp"

namespace maestro::io {

File::File(const std::filesystem::path& path, Pulse& pulse)
    : path_(path), state_(std::make_unique<storage::DriverState>()) {
    quiet_hdf5();
    state_->pulse = &pulse;
}

namespace {

Handle access_through(storage::DriverState& state) {
    Handle access(MAESTRO_HDF5(H5Pcreate(H5P_FILE_ACCESS)), H5Pclose);
    storage::set_driver(access, state);
    // Attributes above 64 KiB (the environment of a thousand ranks) need the object headers of 1.8.
    MAESTRO_HDF5(H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_LATEST));
    return access;
}

/// Of a file whose bytes follow from what it holds: its root keeps no times.
Handle timeless() {
    Handle creation(MAESTRO_HDF5(H5Pcreate(H5P_FILE_CREATE)), H5Pclose);
    MAESTRO_HDF5(H5Pset_obj_track_times(creation, false));
    return creation;
}

}  // namespace

File::File(const std::filesystem::path& path, Mode mode, Pulse& pulse) : File(path, pulse) {
    state_->hold = mode == Mode::hold;
    const Handle access = access_through(*state_);
    const hid_t id = mode == Mode::create
                         ? H5Fcreate(path.c_str(), H5F_ACC_TRUNC, timeless(), access)
                         : H5Fopen(path.c_str(), state_->hold ? H5F_ACC_RDWR : H5F_ACC_RDONLY, access);
    if (id >= 0) {
        handle_ = Handle(id, H5Fclose);
        return;
    }
    if (mode == Mode::create)
        throw Error(ExitCode::cannot_create,
                    fmt::format("{}: cannot create it; is the directory writable and the disk not full?",
                                path.string()));
    if (state_->failed == ENOENT) throw Error(ExitCode::bad_data, path.string() + ": missing");
    if (state_->failed != 0) storage::io_failed(path, state_->what, state_->failed);
    throw Error(ExitCode::bad_data, fmt::format("{}: not a readable HDF5 file", path.string()));
}

File File::held(const std::filesystem::path& path, Pulse& pulse) {
    File file(path, pulse);
    file.state_->hold = true;
    const Handle access = access_through(*file.state_);
    // So that arrays begin at whole words, see base/adhash.hpp.
    MAESTRO_HDF5(H5Pset_alignment(access, AdHash::kWord, AdHash::kWord));
    file.handle_ = Handle(MAESTRO_HDF5(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, timeless(), access)), H5Fclose);
    return file;
}

void File::close() {
    MAESTRO_HDF5(H5Fflush(handle_, H5F_SCOPE_GLOBAL));
    MAESTRO_HDF5(handle_.close());
    if (state_->failed != 0) storage::io_failed(path_, state_->what, state_->failed);
}

void File::explain(const Error& error) const {
    if (state_->failed != 0) storage::io_failed(path_, state_->what, state_->failed);
    const bool of_hdf5 = error.code() == ExitCode::io_error;
    throw Error(ExitCode::bad_data, fmt::format("{}: {}{}", path_.string(), error.what(),
                                                of_hdf5 ? "; the file is damaged" : ""));
}

}  // namespace maestro::io
