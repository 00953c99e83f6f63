// Replaces cudnn_attention.cpp in builds without cuDNN's front end.
#include "backend/cuda/cudnn_attention.hpp"

namespace maestro::backend {

AttentionSupport cudnn_support(int) {
    return {};
}

CudnnAttention make_cudnn_attention(Stream, int) {
    return {nullptr, "built without cuDNN: attention by Maestro's kernels"};
}

}  // namespace maestro::backend
