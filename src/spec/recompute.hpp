// What a section does not keep from the forward pass and computes again in backward (train.recompute).
#pragma once

namespace maestro {

enum class Recompute {
    none,
    cheap,  ///< what takes little time: norms, rotated queries and keys, SwiGLU (selective checkpointing)
    layer,  ///< everything but the inputs of layers (activation checkpointing)
};

}  // namespace maestro
