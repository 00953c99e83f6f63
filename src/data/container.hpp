// Container: the HDF5 side of reading a sample file. It finds attributes and the places of arrays and knows
// nothing of samples. It follows no link out of the file, and allocates nothing because of a size that the
// file only claims. One thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/pulse.hpp"
#include "storage/hdf5_driver.hpp"
#include "storage/hdf5_handle.hpp"

namespace maestro::data {

enum class Element { i32, i64, u64, f32, f64, u8 };

/// The place of an array in the file; checked to be inside it.
struct Extent {
    std::int64_t offset = 0;  ///< bytes from the file's start; 0 where the array is empty
    std::int64_t rows = 0;
};

/// Error(bad_data): "PATH: WHERE: what".
[[noreturn]] void refuse(const std::filesystem::path& path, std::string_view where, std::string_view what);
/// The same for an element of a dataset; the message asks to make the file again.
[[noreturn]] void refuse_element(const std::filesystem::path& path, std::string_view dataset,
                                 std::int64_t element, std::string_view what);

class Container {
public:
    /// `descriptor` is the open file, which the caller keeps; `path` names it in errors. Throws
    /// Error(bad_data) unless it is HDF5 with checksummed metadata, Error(io_error) if it cannot be read.
    Container(const std::filesystem::path& path, int descriptor, Pulse& pulse);
    ~Container();
    Container(const Container&) = delete;
    Container& operator=(const Container&) = delete;

    /// The group ("/" or "/NAME") must be reached by a hard link, keep its links in its checksummed header,
    /// and have no members but these.
    void expect_group(std::string_view group, std::span<const std::string_view> members) const;
    /// Scalar attributes of the root group; strings have fixed length, at most 64 bytes.
    std::int64_t integer(std::string_view attribute) const;
    std::uint64_t unsigned_integer(std::string_view attribute) const;
    std::string text(std::string_view attribute) const;
    /// An array [rows] (columns == 0) or [rows, columns], contiguous, of exactly this type.
    Extent array(std::string_view dataset, Element element, int columns = 0) const;

private:
    void expect_hard_link(std::string_view name, std::string_view where) const;
    storage::Hdf5Handle open_attribute(std::string_view name) const;
    template <class T>
    T read_integer(std::string_view name, hid_t native) const;
    /// Error(io_error) if a read has failed, otherwise refuse().
    [[noreturn]] void fail(std::string_view where, std::string_view what) const;

    const std::filesystem::path& path_;
    std::int64_t file_bytes_ = 0;
    storage::DriverState state_;
    storage::Hdf5Handle file_;
    /// HDF5 prints its errors unless it is silenced; the destructor restores the setting.
    void* former_client_ = nullptr;
    int (*former_printer_)(std::int64_t, void*) = nullptr;
};

}  // namespace maestro::data
