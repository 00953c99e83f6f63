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

/// Whether there is an entry of this name, perhaps one that cannot be opened. Error(io_error) where storage
/// does not say.
bool has_file(const std::filesystem::path& path);

/// The text of a small file of a folder; `what` is "model's configuration". Error(input_missing, io_error),
/// and Error(bad_data) where it is empty or has more than 1 MiB.
std::string read_small_text(const std::filesystem::path& path, const std::string& what, Pulse& pulse);

}  // namespace maestro::safetensors
