// Attention on a GPU, by the implementation that attention_implementation() chooses. Scratch memory is
// allocated in the constructor, so that the meta backend counts it too.
#pragma once

#include <cstdint>
#include <optional>

#include "ops/attention/packed_attention.hpp"
#include "ops/attention/tiles.hpp"

namespace maestro::ops {

class GpuAttention {
public:
    /// `max_seqlen` is the most queries or keys of a sequence. Does nothing for a device that shares the
    /// host's memory. The scratch memory must remain allocated until run().
    GpuAttention(backend::Backend& b, const AttentionTensors& t, const VarlenMask& mask,
                 std::int64_t max_seqlen, backend::Arena& scratch);
    /// Launches the forward or the backward pass, whichever the tensors are for.
    void run(backend::Backend& b, Stream stream) const;

private:
    void allocate_tiles(backend::Backend& b, const VarlenMask& mask, backend::Arena& scratch);

    AttentionTensors tensors_;
    std::optional<PackedAttention> packed_;  ///< absent where the program's kernels run
    AttentionTiles tiles_;
    Tensor dout_dot_out_;  ///< backward: sum(dout * out) by query and head, scratch of the kernels
};

}  // namespace maestro::ops
