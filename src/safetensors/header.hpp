// The header of a safetensors file: which tensors it holds, and where. The format is described in
// https://github.com/huggingface/safetensors: 8 bytes with the length n of the header, n bytes of JSON, then
// the elements of all tensors, row by row, without a gap.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/stored_type.hpp"

namespace maestro::safetensors {

inline constexpr std::uint64_t kLengthBytes = 8;
/// The reference refuses longer headers.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

struct TensorInfo {
    std::string name{};
    StoredType type = StoredType::f32;
    std::vector<std::int64_t> shape{};  ///< empty for a scalar
    std::int64_t elements = 0;
    std::uint64_t offset = 0, bytes = 0;  ///< in the file
};

struct Header {
    std::vector<TensorInfo> tensors{};  ///< by name
    std::map<std::string, std::string> metadata{};
};

/// `text` is the JSON of a file in which `data_bytes` bytes follow the header. Throws Error(bad_data), with
/// the name of `file`, where the reference refuses the header, and further for a name that stands twice, more
/// than 64 dimensions or 4 levels of JSON, JSON that does not begin at once with `{`, and tensors that are
/// described by anything else than an object. Unknown members of that object are ignored, as the reference
/// does. Memory and time are proportional to the text.
Header parse_header(std::string_view text, const std::filesystem::path& file, std::uint64_t data_bytes);

}  // namespace maestro::safetensors
