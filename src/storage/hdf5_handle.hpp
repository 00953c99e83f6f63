// An identifier of HDF5 (hid_t) that closes itself.
#pragma once

#include <hdf5.h>

#include <utility>

namespace maestro::storage {

/// Owns one hid_t; false in a condition if the call that should have made it failed.
class Hdf5Handle {
public:
    Hdf5Handle() = default;
    Hdf5Handle(hid_t id, herr_t (*closer)(hid_t)) : id_(id), close_(closer) {}
    ~Hdf5Handle() { close(); }
    Hdf5Handle(Hdf5Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
    Hdf5Handle& operator=(Hdf5Handle&& other) noexcept {
        std::swap(id_, other.id_);
        std::swap(close_, other.close_);
        return *this;
    }
    Hdf5Handle(const Hdf5Handle&) = delete;
    Hdf5Handle& operator=(const Hdf5Handle&) = delete;
    explicit operator bool() const { return id_ >= 0; }
    operator hid_t() const { return id_; }
    /// Closes now and returns what HDF5 returned, negative on failure: data may reach the file only here.
    herr_t close() {
        const hid_t id = std::exchange(id_, -1);
        return id >= 0 ? close_(id) : 0;
    }

private:
    hid_t id_ = -1;
    herr_t (*close_)(hid_t) = nullptr;
};

}  // namespace maestro::storage
