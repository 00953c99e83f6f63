// Error checks for calls of CUDA's libraries. An exception contains the expression, its source location and
// the library's message.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <string>

#include "base/error.hpp"

namespace maestro::backend {

[[noreturn]] void cuda_failed(ExitCode code, const char* expression, const char* file, int line,
                              const std::string& message);

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

/// Throws unless the call succeeds: Error(device_memory) if the device is out of memory, else
/// Error(broken_invariant).
#define MAESTRO_CUDA_CALL(call) ::maestro::backend::check_cuda((call), #call, __FILE__, __LINE__)
