// The matrix products of the CPU, without a Backend's counting: for operations that make many small ones
// inside their own loops.
#pragma once

#include "backend/backend.hpp"

namespace maestro::backend {

/// Backend::Gemm for f32 and f64, scaled by alpha. Inside a parallel region it runs on the calling thread.
void cpu_gemm(const Backend::Gemm& g, double alpha = 1.0);

}  // namespace maestro::backend
