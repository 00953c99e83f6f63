// FusedAttention by cuDNN, where it was built with and is found.
#pragma once

#include <memory>
#include <string>

#include "backend/fused_attention.hpp"
#include "base/stream.hpp"

namespace maestro::backend {

/// Whether make_cudnn_attention may have one to give.
bool has_cudnn(int architecture);
struct CudnnAttention {
    std::unique_ptr<FusedAttention> attention;  ///< null where there is none
    std::string description;                    ///< the library, for the log, or why there is none
};
/// For a GPU of that architecture; every operation goes to `stream`.
CudnnAttention make_cudnn_attention(Stream stream, int architecture);

}  // namespace maestro::backend
