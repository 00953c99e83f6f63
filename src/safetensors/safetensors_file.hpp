// SafetensorsFile: the tensors of one file, read in parts as f32. Any thread may read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/pulse.hpp"
#include "base/shard.hpp"
#include "safetensors/header.hpp"
#include "safetensors/input_file.hpp"

namespace maestro::safetensors {

class SafetensorsFile {
public:
    /// Reads and checks the header alone. Throws Error(input_missing, bad_data, io_error).
    SafetensorsFile(const std::filesystem::path& path, Pulse& pulse);

    const std::filesystem::path& path() const { return file_.path(); }
    const std::vector<TensorInfo>& tensors() const { return header_.tensors; }  ///< by name
    /// nullptr where the file has none of this name.
    const TensorInfo* find(std::string_view name) const;

    /// Throws Error(bad_data) for a tensor of a type that read() does not convert.
    void check_type(const TensorInfo& tensor) const;
    /// Reads parts of a tensor of this file: for each extent, element `logical` + i of the tensor, counted
    /// row by row, becomes values[local + i stride]. `values` has room for all of them. Extents may come in
    /// any order, but those that ascend and lie close to each other, as the rows of a shard of columns do
    /// (extents_of()), are read together. Uses at most 3 MiB of memory, whatever the tensor. BF16, F16 and
    /// F32 are converted exactly, F64 is rounded to nearest even; throws Error(bad_data) for all other types,
    /// and for a value that is NaN, Inf or too large for f32. Error(io_error).
    void read(const TensorInfo& tensor, std::span<const Extent> extents, float* values, Pulse& pulse) const;
    /// Reads the elements [begin, end) of a tensor.
    void read(const TensorInfo& tensor, Range elements, float* values, Pulse& pulse) const;

private:
    InputFile file_;
    Header header_;
};

}  // namespace maestro::safetensors
