#include <fmt/format.h>

#include <array>
#include <fstream>

#include "backend/cuda/check.hpp"
#include "backend/cuda/stream.hpp"
#include "backend/device.hpp"
#include "backend/gpus.hpp"

namespace maestro::backend {

Gpus find_gpus() {
    int count = 0;
    const cudaError_t found = cudaGetDeviceCount(&count);
    if (found == cudaSuccess && count > 0) {
        if (cublasLtGetVersion() > 0) return {count, ""};
        return {0, fmt::format("libcublasLt.so.{} was not found", CUBLAS_VER_MAJOR)};
    }
    cudaGetLastError();  // clears the error, which the next check would report otherwise
    if (found == cudaSuccess) return {0, "none is visible to this process"};
    int driver = 0;
    cudaDriverGetVersion(&driver);
    return {0, driver == 0 ? "no NVIDIA driver is installed" : cudaGetErrorString(found)};
}

std::string bus_of_gpu(int number) {
    std::array<char, 32> bus{};
    MAESTRO_CUDA_CALL(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), number));
    return bus.data();
}

std::string identity_of_gpu(int number) {
    std::string boot;
    std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
    return fmt::format("{} {}", boot, bus_of_gpu(number));
}

LibraryMemory library_memory_of_gpu(int number, GemmOptions gemm) {
    return library_memory(gemm, attention_support_of_gpu(number).architecture != 0);
}

std::string describe_gpu(int number) {
    cudaDeviceProp properties{};
    MAESTRO_CUDA_CALL(cudaGetDeviceProperties(&properties, number));
    return fmt::format("{} (architecture {}.{}, {} GiB, PCI {})", properties.name, properties.major,
                       properties.minor, properties.totalGlobalMem >> 30, bus_of_gpu(number));
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

int count_streams() {
    return CudaStream::count();
}

void open_context(const Device& device) {
    MAESTRO_CUDA_CALL(cudaSetDevice(device.number));
    MAESTRO_CUDA_CALL(cudaFree(nullptr));
}

std::size_t free_memory(const Device& device) {
    std::size_t left = 0, all = 0;
    MAESTRO_CUDA_CALL(cudaSetDevice(device.number));
    MAESTRO_CUDA_CALL(cudaMemGetInfo(&left, &all));
    return left;
}

}  // namespace maestro::backend
