// FusedAttention by cuDNN, where it was built with and is found.
#pragma once

#include <memory>
#include <string>

#include "backend/fused_attention.hpp"
#include "base/stream.hpp"

namespace maestro::backend {

/// The library, for the log, or why there is none.
std::string describe_cudnn();
/// Whether make_cudnn_attention has one to give.
bool has_cudnn();
/// For a GPU of that architecture; every operation goes to `stream`. Null where there is none.
std::unique_ptr<FusedAttention> make_cudnn_attention(Stream stream, int architecture);

}  // namespace maestro::backend
