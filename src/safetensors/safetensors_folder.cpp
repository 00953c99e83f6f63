#include "safetensors/safetensors_folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "safetensors/message.hpp"

namespace maestro::safetensors {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void no_model(const fs::path& folder) {
    if (has_file(folder / "adapter_model.safetensors") || has_file(folder / "adapter_config.json"))
        refuse(folder,
               "it holds a LoRA adapter and no model; name it in the section's lora.weights, and here the "
               "folder "
               "of its model");
    if (has_file(folder / "pytorch_model.bin") || has_file(folder / "pytorch_model.bin.index.json"))
        refuse(folder,
               "its weights are pickled (*.bin), which only Python can read; convert them: load the "
               "model with transformers and save it with save_pretrained()");
    throw Error(ExitCode::input_missing,
                fmt::format("{}: no {} and no {} there; name a folder of a model in Hugging Face's format",
                            folder.string(), kSingleFile, kIndexFile));
}

FolderIndex read_index(const fs::path& path, Pulse& pulse) {
    const InputFile file(path);
    if (file.size() > kMaxHeaderBytes)
        refuse(path, fmt::format("it has {} bytes, and at most {} are possible; {}", file.size(),
                                 kMaxHeaderBytes, kMakeAgain));
    std::string text(file.size(), '\0');
    file.read(text.data(), text.size(), 0, "the index", pulse);
    return parse_index(text, path);
}

}  // namespace

SafetensorsFolder::SafetensorsFolder(const fs::path& folder, Pulse& pulse) : folder_(folder), pulse_(pulse) {
    const fs::path single = folder / kSingleFile, index = folder / kIndexFile;
    const bool has_single = has_file(single);
    if (has_file(index)) {
        index_ = read_index(index, pulse);
        if (has_single && !std::binary_search(index_.files.begin(), index_.files.end(), kSingleFile))
            refuse(index,
                   fmt::format("it does not name the {} beside it, so that the folder holds two models; "
                               "remove one of the two files",
                               kSingleFile));
        for (const std::string& name : index_.files)
            if (!has_file(folder / name))
                throw Error(ExitCode::input_missing,
                            fmt::format("{}: it is missing, and {} names it; download the whole model folder",
                                        (folder / name).string(), kIndexFile));
        open_.resize(index_.files.size());
    } else if (has_single) {
        open_.push_back(std::make_unique<SafetensorsFile>(single, pulse));
        index_.files = {kSingleFile};
        for (const TensorInfo& tensor : open_[0]->tensors()) index_.entries.push_back({tensor.name, 0});
    } else {
        no_model(folder);
    }
}

const FolderIndex::Entry* SafetensorsFolder::entry_of(std::string_view tensor) const {
    const auto& all = index_.entries;
    const auto found = std::lower_bound(
        all.begin(), all.end(), tensor,
        [](const FolderIndex::Entry& entry, std::string_view wanted) { return entry.tensor < wanted; });
    return found != all.end() && found->tensor == tensor ? &*found : nullptr;
}

SafetensorsFolder::Found SafetensorsFolder::find(std::string_view tensor) {
    const FolderIndex::Entry* entry = entry_of(tensor);
    if (entry == nullptr)
        refuse(folder_, tensor, "none of its files holds it; name the folder of a model of this kind");
    const SafetensorsFile& holder = file(entry->file);
    return {&holder, holder.find(tensor)};
}

const SafetensorsFile& SafetensorsFolder::file(std::size_t number) {
    auto& open = open_.at(number);
    if (!open) {
        auto opened = std::make_unique<SafetensorsFile>(folder_ / index_.files[number], pulse_);
        check_agreement(number, *opened);
        open = std::move(opened);
    }
    return *open;
}

void SafetensorsFolder::open_all() {
    for (std::size_t i = 0; i < open_.size(); ++i) file(i);
}

void SafetensorsFolder::check_agreement(std::size_t number, const SafetensorsFile& opened) const {
    for (const FolderIndex::Entry& entry : index_.entries)
        if (entry.file == number && opened.find(entry.tensor) == nullptr)
            refuse(opened.path(), entry.tensor,
                   fmt::format("{} says that it is in this file, and it is not; {}", kIndexFile, kMakeAgain));
    for (const TensorInfo& tensor : opened.tensors()) {
        const FolderIndex::Entry* entry = entry_of(tensor.name);
        if (entry == nullptr)
            refuse(opened.path(), tensor.name,
                   fmt::format("{} does not name it; {}", kIndexFile, kMakeAgain));
        if (entry->file != number)
            refuse(opened.path(), tensor.name,
                   fmt::format("{} says that it is in {}; a tensor may be in one file only: {}", kIndexFile,
                               index_.files[entry->file], kMakeAgain));
    }
}

}  // namespace maestro::safetensors
