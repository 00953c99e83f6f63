#include "train/run/exported_parameter.hpp"

#include <span>

#include "base/shard.hpp"

namespace maestro::train {

void ExportedParameter::write(Range block, const float* values,
                              safetensors::SafetensorsWriter& writer) const {
    const Extent extent{block.begin, 0, block.size()};
    const auto by_piece = families::extents_by_piece(pieces, std::span(&extent, 1));
    for (std::size_t i = 0; i < by_piece.size(); ++i)
        if (!by_piece[i].empty()) writer.write(first_tensor + i, by_piece[i], values);
}

}  // namespace maestro::train
