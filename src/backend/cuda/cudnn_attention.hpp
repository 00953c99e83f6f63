// FusedAttention by cuDNN, in builds with its front end, where the library is installed.
#pragma once

#include <memory>
#include <string>

#include "backend/fused_attention.hpp"
#include "base/stream.hpp"

namespace maestro::backend {

/// What the cuDNN that is installed has for GPUs of this architecture.
AttentionSupport cudnn_support(int architecture);
struct CudnnAttention {
    std::unique_ptr<FusedAttention> attention;  ///< null where cuDNN is not used
    std::string description;                    ///< library version, or why it is not used, for the log
};
/// For a GPU of that architecture. All operations run on `stream`.
CudnnAttention make_cudnn_attention(Stream stream, int architecture);

}  // namespace maestro::backend
