#include "train/interchange/exported_parameter.hpp"

#include <span>

#include "base/shard.hpp"
#include "comm/agree.hpp"

namespace maestro::train {

void ExportedParameter::write(Range block, const float* values,
                              safetensors::SafetensorsWriter& writer) const {
    const Extent extent{block.begin, 0, block.size()};
    const auto by_piece = families::extents_by_piece(pieces, std::span(&extent, 1));
    for (std::size_t i = 0; i < by_piece.size(); ++i)
        if (!by_piece[i].empty()) writer.write(first_tensor + i, by_piece[i], values);
}

void write_in_parts(const comm::Communicator& world, safetensors::SafetensorsWriter& writer,
                    const std::function<void()>& write) {
    comm::agree(world, [&] {
        if (world.rank() == 0) writer.prepare();
    });
    comm::agree(world, [&] {
        write();
        writer.sync();
    });
    comm::agree(world, [&] { writer.verify(); });
}

}  // namespace maestro::train
