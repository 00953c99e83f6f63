#include <fmt/format.h>

#include <array>

#include "backend/cuda_check.hpp"
#include "backend/device.hpp"
#include "backend/gpus.hpp"

namespace maestro::backend {

Gpus find_gpus() {
    int count = 0;
    const cudaError_t found = cudaGetDeviceCount(&count);
    if (found == cudaSuccess && count > 0) {
        if (cublasLtGetVersion() > 0) return {count, ""};
        return {0, fmt::format("libcublasLt.so.{} is not to be found", CUBLAS_VER_MAJOR)};
    }
    cudaGetLastError();  // or the next call would report it again
    if (found == cudaSuccess) return {0, "none is visible to this process"};
    int driver = 0;
    cudaDriverGetVersion(&driver);
    return {0, driver == 0 ? "there is no driver of NVIDIA's" : cudaGetErrorString(found)};
}

std::string describe_gpu(int number) {
    cudaDeviceProp properties{};
    std::array<char, 32> bus{};
    MAESTRO_CUDA_CALL(cudaGetDeviceProperties(&properties, number));
    MAESTRO_CUDA_CALL(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), number));
    return fmt::format("{} (architecture {}.{}, {} GiB, PCI {})", properties.name, properties.major,
                       properties.minor, properties.totalGlobalMem >> 30, bus.data());
}

std::string describe_peers() {
    const int count = find_gpus().count;
    std::string text;
    for (int from = 0; from < count; ++from) {
        std::string reached;
        for (int to = 0; to < count; ++to) {
            int can = 0;
            if (to != from) MAESTRO_CUDA_CALL(cudaDeviceCanAccessPeer(&can, from, to));
            if (can) reached += fmt::format("{}{}", reached.empty() ? " reaches " : ", ", to);
        }
        text += fmt::format("{}{}{}", from > 0 ? "; " : "", from, reached.empty() ? " none" : reached);
    }
    return text;
}

std::size_t free_memory(const Device& device) {
    std::size_t left = 0, all = 0;
    MAESTRO_CUDA_CALL(cudaSetDevice(device.number));
    MAESTRO_CUDA_CALL(cudaMemGetInfo(&left, &all));
    return left;
}

}  // namespace maestro::backend
