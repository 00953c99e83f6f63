// Whether the exchanges of tensor parallelism go on beside GEMMs in the forward pass (run.tp_overlap).
#pragma once

namespace maestro {

enum class TpOverlap {
    automatic,  ///< on GPUs, where a GEMM takes long enough
    always,
    never,
};

}  // namespace maestro
