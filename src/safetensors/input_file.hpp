// An open file of a model folder as bytes, which any thread may read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/pulse.hpp"
#include "storage/file.hpp"

namespace maestro::safetensors {

class InputFile {
public:
    /// Symbolic links are followed. Throws Error(input_missing) if the file does not exist or may not be
    /// opened, Error(io_error) if storage fails, Error(bad_data) unless it is a regular file.
    explicit InputFile(const std::filesystem::path& path);

    const std::filesystem::path& path() const { return path_; }
    std::uint64_t size() const { return size_; }
    /// Reads `bytes` bytes from `offset` on, with a beat after every MiB; a failed read is tried again as
    /// storage::read_at() does. `what` is named in errors: Error(io_error) if reading fails, Error(bad_data)
    /// if the file has become shorter.
    void read(void* target, std::uint64_t bytes, std::uint64_t offset, const std::string& what,
              Pulse& pulse) const;

private:
    std::filesystem::path path_;
    storage::Descriptor file_;
    std::uint64_t size_ = 0;
};

}  // namespace maestro::safetensors
