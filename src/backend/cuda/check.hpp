// Calls of CUDA's libraries: what fails is thrown with the expression, its place and the library's words.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <string>

#include "base/error.hpp"

namespace maestro::backend {

[[noreturn]] void cuda_failed(ExitCode code, const char* expression, const char* file, int line,
                              const std::string& said);

inline void check_cuda(cudaError_t found, const char* expression, const char* file, int line) {
    if (found != cudaSuccess) [[unlikely]]
        cuda_failed(found == cudaErrorMemoryAllocation ? ExitCode::device_memory : ExitCode::broken_invariant,
                    expression, file, line, cudaGetErrorString(found));
}
inline void check_cuda(cublasStatus_t found, const char* expression, const char* file, int line) {
    if (found != CUBLAS_STATUS_SUCCESS) [[unlikely]]
        cuda_failed(
            found == CUBLAS_STATUS_ALLOC_FAILED ? ExitCode::device_memory : ExitCode::broken_invariant,
            expression, file, line, cublasLtGetStatusString(found));
}

}  // namespace maestro::backend

/// Throws unless the call returns success: Error(device_memory) where memory has run out, else
/// Error(broken_invariant).
#define MAESTRO_CUDA_CALL(call) ::maestro::backend::check_cuda((call), #call, __FILE__, __LINE__)
