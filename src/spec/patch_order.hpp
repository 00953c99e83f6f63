// In which order a row holds the values of a patch.
#pragma once

namespace maestro {

/// `pixels`: by row, column and channel. `film`: by channel, frame, row and column, where a still picture is
/// both of two frames: the order of a Conv3d weight [C, channels, 2, patch, patch], with which Qwen2-VL and
/// Qwen3-VL encode films and pictures alike.
enum class PatchOrder { pixels, film };

/// How often a row holds each pixel.
constexpr int frames_of(PatchOrder order) {
    return order == PatchOrder::film ? 2 : 1;
}

}  // namespace maestro
