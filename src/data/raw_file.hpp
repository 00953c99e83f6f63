// RawFile: an open sample file as bytes, read by pread from any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace maestro::data {

class RawFile {
public:
    /// Throws Error(input_missing) where it cannot be opened, Error(bad_data) unless it is a regular file.
    explicit RawFile(const std::filesystem::path& path);
    ~RawFile();
    RawFile(const RawFile&) = delete;
    RawFile& operator=(const RawFile&) = delete;

    const std::filesystem::path& path() const { return path_; }
    int descriptor() const { return descriptor_; }
    /// All `bytes` from `offset` on. `dataset` is named in errors: Error(io_error) where reading fails,
    /// Error(bad_data) where the file has become shorter.
    void read(void* target, std::int64_t bytes, std::int64_t offset, std::string_view dataset) const;

private:
    std::filesystem::path path_;
    int descriptor_ = -1;
};

}  // namespace maestro::data
