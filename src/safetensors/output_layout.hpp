// How tensors are laid out in the files of a model folder, with the bytes of all headers. A function of
// names, types and shapes alone: every rank computes the same layout.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "safetensors/stored_type.hpp"

namespace maestro::safetensors {

/// 5 GB, as in published models.
inline constexpr std::uint64_t kMaxShardBytes = 5'000'000'000;

struct TensorSpec {
    std::string name;
    StoredType type = StoredType::bf16;  ///< is_writable()
    std::vector<std::int64_t> shape;

    std::int64_t elements() const;
};

struct OutputLayout {
    struct File {
        std::string name;
        std::string header;       ///< the bytes from the beginning of the file to the first tensor
        std::uint64_t bytes = 0;  ///< of the whole file
    };
    struct Place {
        std::size_t file = 0;
        std::uint64_t offset = 0;  ///< in the file, a multiple of the bytes of an element
    };

    std::vector<TensorSpec> tensors{};
    std::vector<Place> places{};  ///< of the tensors
    std::vector<File> files{};
    std::string index{};  ///< model.safetensors.index.json; empty with a single file
};

/// Fills files with tensors in their order, as huggingface_hub does: a file is closed before a tensor that
/// would make its data larger than `max_shard_bytes`, and a tensor that is larger has a file to itself.
/// Within a file the order is that of the reference: by type, then by name. A single file is
/// `model.safetensors`, several are `model-00001-of-0000N.safetensors`. Names are unique, in UTF-8.
OutputLayout lay_out(std::vector<TensorSpec> tensors, std::uint64_t max_shard_bytes = kMaxShardBytes);

}  // namespace maestro::safetensors
