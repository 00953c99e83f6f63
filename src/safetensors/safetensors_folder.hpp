// SafetensorsFolder: the tensors of a Hugging Face model folder, in model.safetensors or in the files that
// model.safetensors.index.json names. Not for several threads: files are opened when they are first needed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/pulse.hpp"
#include "safetensors/index.hpp"
#include "safetensors/safetensors_file.hpp"

namespace maestro::safetensors {

/// The names of these files in every model folder.
inline constexpr const char* kSingleFile = "model.safetensors";
inline constexpr const char* kIndexFile = "model.safetensors.index.json";

class SafetensorsFolder {
public:
    /// A tensor and its file, which live as long as the folder.
    struct Found {
        const SafetensorsFile* file;
        const TensorInfo* tensor;
    };

    /// Reads the index, or the header of model.safetensors. Throws Error(input_missing) where one of the
    /// files is missing, Error(bad_data) where the folder has both a model.safetensors and an index without
    /// it, and the errors of parse_index() and SafetensorsFile. `pulse` outlives the folder.
    SafetensorsFolder(const std::filesystem::path& folder, Pulse& pulse);

    const std::filesystem::path& path() const { return folder_; }
    /// All tensors, by name, with the numbers of their files.
    const std::vector<FolderIndex::Entry>& entries() const { return index_.entries; }
    bool has(std::string_view tensor) const { return entry_of(tensor) != nullptr; }

    /// Opens the tensor's file unless it is open. Throws Error(bad_data) where the folder has no such tensor,
    /// or where the file does not hold exactly the tensors that the index gives to it: one is missing, is
    /// also in another file, or is not in the index. The errors of SafetensorsFile.
    Found find(std::string_view tensor);
    /// Opens all files, so that a folder is refused before any weight is read. One rank may do it for all.
    void open_all();

private:
    const SafetensorsFile& file(std::size_t number);
    const FolderIndex::Entry* entry_of(std::string_view tensor) const;
    void check_agreement(std::size_t number, const SafetensorsFile& opened) const;

    std::filesystem::path folder_;
    Pulse& pulse_;
    FolderIndex index_{};
    std::vector<std::unique_ptr<SafetensorsFile>> open_{};  ///< by number of file
};

}  // namespace maestro::safetensors
