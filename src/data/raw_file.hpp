// RawFile: an open sample file as bytes, which any thread may read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "base/pulse.hpp"
#include "storage/file.hpp"

namespace maestro::data {

class RawFile {
public:
    /// Throws Error(input_missing) if it does not exist or may not be opened, Error(io_error) if storage
    /// fails, Error(bad_data) unless it is a regular file.
    explicit RawFile(const std::filesystem::path& path);

    const std::filesystem::path& path() const { return path_; }
    int descriptor() const { return file_.get(); }
    /// Reads `bytes` bytes from `offset` on, with a beat after every MiB; a failed read is tried again as
    /// storage::read_at() does. `dataset` is named in errors: Error(io_error) if reading fails,
    /// Error(bad_data) if the file has become shorter.
    void read(void* target, std::int64_t bytes, std::int64_t offset, std::string_view dataset,
              Pulse& pulse) const;

private:
    std::filesystem::path path_;
    storage::Descriptor file_;
};

}  // namespace maestro::data
