// Names and texts of the errors that the simulated runtime returns, and of those that a test may inject.
#include <cuda_runtime_api.h>

#include <array>

namespace {

struct Text {
    cudaError_t error;
    const char *name, *text;
};

#define MAESTRO_HOSTED_ERROR(error, text) \
    Text {                                \
        error, #error, text               \
    }
constexpr std::array kTexts{
    MAESTRO_HOSTED_ERROR(cudaSuccess, "no error"),
    MAESTRO_HOSTED_ERROR(cudaErrorInvalidValue, "invalid argument"),
    MAESTRO_HOSTED_ERROR(cudaErrorMemoryAllocation, "out of memory"),
    MAESTRO_HOSTED_ERROR(cudaErrorInitializationError, "initialization error"),
    MAESTRO_HOSTED_ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    MAESTRO_HOSTED_ERROR(cudaErrorInvalidPitchValue, "invalid pitch argument"),
    MAESTRO_HOSTED_ERROR(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    MAESTRO_HOSTED_ERROR(cudaErrorInsufficientDriver,
                         "CUDA driver version is insufficient for CUDA runtime version"),
    MAESTRO_HOSTED_ERROR(cudaErrorInvalidDeviceFunction, "invalid device function"),
    MAESTRO_HOSTED_ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    MAESTRO_HOSTED_ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    MAESTRO_HOSTED_ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    MAESTRO_HOSTED_ERROR(cudaErrorNotReady, "device not ready"),
    MAESTRO_HOSTED_ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    MAESTRO_HOSTED_ERROR(cudaErrorHostMemoryAlreadyRegistered,
                         "part or all of the requested memory range is already mapped"),
    MAESTRO_HOSTED_ERROR(cudaErrorHostMemoryNotRegistered,
                         "pointer does not correspond to a registered memory region"),
    MAESTRO_HOSTED_ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    MAESTRO_HOSTED_ERROR(cudaErrorNotSupported, "operation not supported"),
    MAESTRO_HOSTED_ERROR(cudaErrorUnknown, "unknown error"),
};
#undef MAESTRO_HOSTED_ERROR

constexpr Text kUnrecognized{cudaErrorUnknown, "unrecognized error code", "unrecognized error code"};

const Text& text_of(cudaError_t error) {
    for (const Text& text : kTexts)
        if (text.error == error) return text;
    return kUnrecognized;
}

}  // namespace

const char* cudaGetErrorName(cudaError_t error) {
    return text_of(error).name;
}
const char* cudaGetErrorString(cudaError_t error) {
    return text_of(error).text;
}
