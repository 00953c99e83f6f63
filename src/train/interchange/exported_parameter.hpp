// Sections and parameters on their way from a checkpoint to the tensors of a folder.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "families/family.hpp"
#include "safetensors/safetensors_writer.hpp"

namespace maestro::train {

/// A section of a checkpoint with its model, and the folder that it started from.
struct ExportedSection {
    std::string section, folder;
    model::ModelSpec spec;
    Lora lora;
};

struct ExportedParameter {
    std::string name;
    std::vector<std::int64_t> shape;
    std::vector<families::Piece> pieces;  ///< the tensors that its rows become
    std::size_t first_tensor = 0;         ///< of the writer: that of the first piece

    /// Writes the elements `block` of the parameter. Error(io_error).
    void write(Range block, const float* values, safetensors::SafetensorsWriter& writer) const;
};

/// Collective. Rank 0 makes the files, `write` writes this rank's elements, and when all of them are on the
/// disk, each rank reads back what it wrote. Then the files can be published. Throws on all ranks what a step
/// throws on one.
void write_in_parts(const comm::Communicator& world, safetensors::SafetensorsWriter& writer,
                    const std::function<void()>& write);

}  // namespace maestro::train
