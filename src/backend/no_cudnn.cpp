// Builds for GPUs without cuDNN's front end.
#include "backend/cudnn_attention.hpp"

namespace maestro::backend {

bool has_cudnn() {
    return false;
}

std::string describe_cudnn() {
    return "built without cuDNN: attention by own kernels";
}

std::unique_ptr<FusedAttention> make_cudnn_attention(Stream, int) {
    return nullptr;
}

}  // namespace maestro::backend
