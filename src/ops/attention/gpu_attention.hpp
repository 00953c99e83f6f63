// Attention on a GPU, in the form that attention_form gives: scratch is taken first, on paper too.
#pragma once

#include <cstdint>
#include <optional>

#include "ops/attention/packed_attention.hpp"
#include "ops/attention/tiles.hpp"

namespace maestro::ops {

class GpuAttention {
public:
    /// Forward without dq. `max_seqlen`: most queries or keys of a sequence. Takes nothing where the device
    /// uses the host's memory.
    GpuAttention(backend::Backend& b, const AttentionTensors& t, const VarlenMask& mask,
                 std::int64_t max_seqlen, backend::Arena& scratch);
    void run(backend::Backend& b, Stream stream) const;

private:
    void take_tiles(backend::Backend& b, const VarlenMask& mask, backend::Arena& scratch);

    AttentionTensors tensors_;
    std::optional<PackedAttention> packed_;
    AttentionTiles tiles_;
    Tensor shared_;
};

}  // namespace maestro::ops
