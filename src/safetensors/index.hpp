// model.safetensors.index.json: which file of a folder holds which tensor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace maestro::safetensors {

struct FolderIndex {
    struct Entry {
        std::string tensor;
        std::size_t file;  ///< of `files`
    };
    std::vector<Entry> entries{};      ///< by the name of the tensor
    std::vector<std::string> files{};  ///< by name; each holds at least one tensor
};

/// Throws Error(bad_data), with the name of the file `index`, unless the text is an object whose member
/// `weight_map` gives each tensor once, in a file whose name ends in .safetensors and is no path. Other
/// members are ignored: `total_size` is wrong in published models.
FolderIndex parse_index(std::string_view text, const std::filesystem::path& index);

}  // namespace maestro::safetensors
