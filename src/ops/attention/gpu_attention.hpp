// A call of attention on a GPU, by the implementation that attention_implementation() chose. Scratch memory
// is allocated in the constructor, so that the meta backend counts it too.
#pragma once

#include "ops/attention/tables.hpp"

namespace maestro::ops {

class GpuAttention {
public:
    /// Does nothing for a device that shares the host's memory. The tables and the scratch memory must remain
    /// until run().
    GpuAttention(backend::Backend& b, const AttentionTensors& t, const MaskTables& tables,
                 backend::Arena& scratch);
    /// Launches the forward or the backward pass, whichever the tensors are for.
    void run(backend::Backend& b, Stream stream) const;

private:
    AttentionTensors tensors_;
    const MaskTables& tables_;
    PackedScratch packed_;
    Tensor dout_dot_out_;  ///< backward: sum(dout * out) by query and head, scratch of the kernels
};

}  // namespace maestro::ops
