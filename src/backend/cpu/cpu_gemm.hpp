// The GEMM of the CPU without the counting of Backend::gemm(), for operations that run many small GEMMs
// within their loops and count them as one operation.
#pragma once

#include "backend/backend.hpp"

namespace maestro::backend {

/// y (+)= alpha op(a) op(b) for f32 and f64. Within a parallel region it runs on the calling thread.
void cpu_gemm(const Backend::Gemm& g);

}  // namespace maestro::backend
