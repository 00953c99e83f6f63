// HDF5 files, and the check of every call. Only one thread of a process may use HDF5.
#pragma once

#include <hdf5.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/shard.hpp"
#include "storage/hdf5_driver.hpp"
#include "storage/hdf5_handle.hpp"

namespace maestro::io {

namespace detail {
[[noreturn]] void hdf5_failed(const char* expression, const char* file, int line);
}

/// Returns the value of an HDF5 call; throws Error(io_error) if it is negative, with the expression, the
/// source line and HDF5's message.
#define MAESTRO_HDF5(expression)                                                 \
    [&] {                                                                        \
        const auto maestro_result = (expression);                                \
        if (maestro_result < 0) [[unlikely]]                                     \
            ::maestro::io::detail::hdf5_failed(#expression, __FILE__, __LINE__); \
        return maestro_result;                                                   \
    }()

using Handle = storage::Hdf5Handle;

/// Silences HDF5's own printing; the messages go into the errors.
void quiet_hdf5();

/// An open HDF5 file. A writer calls close(), which throws the first failure since the file was opened.
/// `pulse` must outlive it.
class File {
public:
    enum class Mode { read, create, hold };  ///< hold: open to be changed, or new, with writes kept in memory
    /// Error(bad_data) where the file is missing or no HDF5 file, Error(io_error) where it cannot be read,
    /// Error(cannot_create).
    File(const std::filesystem::path& path, Mode mode, Pulse& pulse);
    /// A new one that is held in memory.
    static File held(const std::filesystem::path& path, Pulse& pulse);
    operator hid_t() const { return handle_; }
    /// Flush and close. Error(io_error) where any call before failed.
    void close();
    const storage::DriverState& state() const { return *state_; }
    /// Returns what `action` returns. A failed HDF5 call in it becomes Error(io_error) if the disk failed,
    /// and Error(bad_data) if the content is wrong; all errors name the file.
    template <class Action>
    auto read(Action&& action) const {
        try {
            return action(handle_);
        } catch (const Error& error) {
            explain(error);
        }
    }

private:
    File(const std::filesystem::path& path, Pulse& pulse);
    [[noreturn]] void explain(const Error& error) const;

    std::filesystem::path path_;
    std::unique_ptr<storage::DriverState> state_;  // before the handle, whose end still uses it
    Handle handle_;
};

/// Opens the group, or creates it. Objects have no time stamps, so equal contents give equal bytes.
Handle make_group(hid_t parent, const std::string& name);

/// Replaces an older value.
void write_attribute(hid_t object, const std::string& name, const std::string& value);
void write_attribute(hid_t object, const std::string& name, std::int64_t value);
/// Error(bad_data) if it is missing or has another type.
std::string read_text_attribute(hid_t object, const std::string& name);
std::int64_t read_integer_attribute(hid_t object, const std::string& name);

/// Creates a contiguous float array in a group of the file, which is created if necessary. The elements are
/// written without HDF5: returns the byte offset of the first one in the file.
std::uint64_t make_floats(hid_t file, const std::string& group, const std::string& name,
                          const std::vector<std::int64_t>& shape);
/// Reads the elements [held.begin, held.end) of a shard of an array of this logical shape. Error(bad_data) if
/// the array is missing, has another shape, is external or virtual, or is longer than the file.
std::vector<float> read_floats(hid_t file, const std::string& path, const std::vector<std::int64_t>& shape,
                               const Shard& shard, Range held);

/// A text in a column: at most 16 characters, then zeros.
using ShortText = std::array<char, 16>;
/// Error(broken_invariant) where the text is longer.
ShortText short_text(std::string_view text);

/// A column that grows by appending; T is int32_t, int64_t, double or ShortText.
template <class T>
void append_column(hid_t group, const std::string& name, std::span<const T> values);
template <class T>
std::vector<T> read_column(hid_t group, const std::string& name);
/// The rows [first, first + rows) alone.
template <class T>
std::vector<T> read_column(hid_t group, const std::string& name, std::int64_t first, std::int64_t rows);
std::int64_t rows_of_column(hid_t group, const std::string& name);
/// Error(bad_data) if it has fewer rows.
void cut_column(hid_t group, const std::string& name, std::int64_t rows);

}  // namespace maestro::io
