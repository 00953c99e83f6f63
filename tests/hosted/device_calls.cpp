// The CUDA runtime's device queries. Devices are H100 80GB GPUs, as many as MAESTRO_HOSTED_DEVICES and
// CUDA_VISIBLE_DEVICES allow. MAESTRO_HOSTED_MEMORY sets their memory and MAESTRO_HOSTED_ARCHITECTURE their
// compute capability (80 for 8.0).
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "runtime.hpp"
#include "shared_memory.hpp"

using hosted::call;
using hosted::Runtime;

namespace {

constexpr int kMultiprocessors = 132, kL2Bytes = 50 << 20, kRegisters = 65'536,
              kSharedPerMultiprocessor = 233'472;

int gpu_of(const Runtime& r, int device) {
    return r.gpus.at(static_cast<std::size_t>(device));
}
std::string bus_id(const Runtime& r, int device) {
    return fmt::format("0000:{:02X}:00.0", 0x10 + gpu_of(r, device));
}

cudaDeviceProp properties(const Runtime& r, int device) {
    cudaDeviceProp p = {};
    std::strcpy(p.name, "NVIDIA H100 80GB HBM3 (hosted)");
    p.uuid.bytes[15] = static_cast<char>(gpu_of(r, device) + 1);
    p.totalGlobalMem = r.memory.capacity();
    p.sharedMemPerBlock = hosted::kDefaultSharedBytes;
    p.sharedMemPerBlockOptin = hosted::kSharedBytes;
    p.sharedMemPerMultiprocessor = kSharedPerMultiprocessor;
    p.reservedSharedMemPerBlock = 1024;
    p.regsPerBlock = p.regsPerMultiprocessor = kRegisters;
    p.warpSize = 32;
    p.memPitch = 0x7fffffff;
    p.maxThreadsPerBlock = 1024;
    p.maxThreadsPerMultiProcessor = 2048;
    p.maxBlocksPerMultiProcessor = 32;
    p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
    p.maxThreadsDim[2] = 64;
    p.maxGridSize[0] = 0x7fffffff;
    p.maxGridSize[1] = p.maxGridSize[2] = 65'535;
    p.totalConstMem = 65'536;
    p.major = r.architecture / 10;
    p.minor = r.architecture % 10;
    p.textureAlignment = 512;
    p.multiProcessorCount = kMultiprocessors;
    p.canMapHostMemory = p.unifiedAddressing = p.concurrentKernels = p.ECCEnabled = 1;
    p.pciBusID = 0x10 + gpu_of(r, device);
    p.asyncEngineCount = 3;
    p.memoryBusWidth = 5120;
    p.l2CacheSize = kL2Bytes;
    p.streamPrioritiesSupported = p.hostRegisterSupported = p.cooperativeLaunch = 1;
    return p;
}

bool is_device_number(const Runtime& r, int device) {
    return device >= 0 && device < r.devices;
}

}  // namespace

cudaError_t cudaGetDeviceCount(int* count) {
    return call([&](Runtime& r) {
        if (count == nullptr) return cudaErrorInvalidValue;
        *count = r.devices;
        return r.devices == 0 ? cudaErrorNoDevice : cudaSuccess;
    });
}

cudaError_t cudaSetDevice(int device) {
    return call([&](Runtime& r) {
        if (!is_device_number(r, device)) return cudaErrorInvalidDevice;
        hosted::set_current_device(device);
        return hosted::make_context(r);
    });
}

cudaError_t cudaGetDevice(int* device) {
    return call([&](Runtime&) {
        if (device == nullptr) return cudaErrorInvalidValue;
        *device = hosted::current_device();
        return cudaSuccess;
    });
}

cudaError_t cudaSetDeviceFlags(unsigned) {
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* target, int device) {
    return call([&](Runtime& r) {
        if (target == nullptr) return cudaErrorInvalidValue;
        if (!is_device_number(r, device)) return cudaErrorInvalidDevice;
        *target = properties(r, device);
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    return call([&](Runtime& r) {
        if (value == nullptr) return cudaErrorInvalidValue;
        if (!is_device_number(r, device)) return cudaErrorInvalidDevice;
        const cudaDeviceProp p = properties(r, device);
        switch (attribute) {
            case cudaDevAttrMaxThreadsPerBlock:
                *value = p.maxThreadsPerBlock;
                break;
            case cudaDevAttrMaxGridDimX:
                *value = p.maxGridSize[0];
                break;
            case cudaDevAttrMaxGridDimY:
                *value = p.maxGridSize[1];
                break;
            case cudaDevAttrMaxGridDimZ:
                *value = p.maxGridSize[2];
                break;
            case cudaDevAttrMaxSharedMemoryPerBlock:
                *value = static_cast<int>(p.sharedMemPerBlock);
                break;
            case cudaDevAttrMaxSharedMemoryPerBlockOptin:
                *value = static_cast<int>(p.sharedMemPerBlockOptin);
                break;
            case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
                *value = static_cast<int>(p.sharedMemPerMultiprocessor);
                break;
            case cudaDevAttrWarpSize:
                *value = p.warpSize;
                break;
            case cudaDevAttrMaxRegistersPerBlock:
                *value = p.regsPerBlock;
                break;
            case cudaDevAttrClockRate:
                *value = 1'980'000;
                break;
            case cudaDevAttrMemoryClockRate:
                *value = 2'619'000;
                break;
            case cudaDevAttrGlobalMemoryBusWidth:
                *value = p.memoryBusWidth;
                break;
            case cudaDevAttrL2CacheSize:
                *value = p.l2CacheSize;
                break;
            case cudaDevAttrMultiProcessorCount:
                *value = p.multiProcessorCount;
                break;
            case cudaDevAttrMaxThreadsPerMultiProcessor:
                *value = p.maxThreadsPerMultiProcessor;
                break;
            case cudaDevAttrMaxBlocksPerMultiprocessor:
                *value = p.maxBlocksPerMultiProcessor;
                break;
            case cudaDevAttrComputeCapabilityMajor:
                *value = p.major;
                break;
            case cudaDevAttrComputeCapabilityMinor:
                *value = p.minor;
                break;
            case cudaDevAttrAsyncEngineCount:
                *value = p.asyncEngineCount;
                break;
            case cudaDevAttrUnifiedAddressing:
                *value = p.unifiedAddressing;
                break;
            case cudaDevAttrEccEnabled:
                *value = p.ECCEnabled;
                break;
            case cudaDevAttrPciBusId:
                *value = p.pciBusID;
                break;
            case cudaDevAttrStreamPrioritiesSupported:
                *value = p.streamPrioritiesSupported;
                break;
            case cudaDevAttrHostRegisterSupported:
                *value = p.hostRegisterSupported;
                break;
            case cudaDevAttrPciDeviceId:
            case cudaDevAttrPciDomainId:
            case cudaDevAttrIntegrated:
            case cudaDevAttrManagedMemory:
            case cudaDevAttrPageableMemoryAccess:
            case cudaDevAttrMemoryPoolsSupported:
                *value = 0;
                break;
            default:
                return cudaErrorNotSupported;
        }
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
    return call([&](Runtime& r) {
        if (id == nullptr || length < 1) return cudaErrorInvalidValue;
        if (!is_device_number(r, device)) return cudaErrorInvalidDevice;
        const std::string text = bus_id(r, device).substr(0, static_cast<std::size_t>(length) - 1);
        std::strcpy(id, text.c_str());
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
    return call([&](Runtime& r) {
        if (can == nullptr) return cudaErrorInvalidValue;
        if (!is_device_number(r, device) || !is_device_number(r, peer)) return cudaErrorInvalidDevice;
        *can = device != peer && gpu_of(r, device) / r.island == gpu_of(r, peer) / r.island;
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    return call([&](Runtime& r) {
        if (flags != 0) return cudaErrorInvalidValue;
        return is_device_number(r, peer) && peer != hosted::current_device() ? cudaSuccess
                                                                             : cudaErrorInvalidDevice;
    });
}

cudaError_t cudaDriverGetVersion(int* version) {
    return cudaRuntimeGetVersion(version);
}

cudaError_t cudaRuntimeGetVersion(int* version) {
    return call([&](Runtime&) {
        if (version == nullptr) return cudaErrorInvalidValue;
        *version = CUDART_VERSION;
        return cudaSuccess;
    });
}
