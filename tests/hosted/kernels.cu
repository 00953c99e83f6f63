// Correct and faulty kernels, which both nvcc and the host compiler accept.
#include "kernels.cuh"

#include <cuda_runtime.h>

namespace maestro::kernels {
namespace {

constexpr unsigned kAll = 0xffffffffu;

cudaLaunchConfig_t shape(cudaStream_t stream, dim3 grid, dim3 block, std::size_t shared_bytes = 0) {
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    return config;
}

}  // namespace

template <class T>
__device__ __forceinline__ T* shared() {
    extern __shared__ __align__(16) unsigned char maestro_shared_memory[];
    return reinterpret_cast<T*>(maestro_shared_memory);
}

__global__ void __launch_bounds__(256)
    scale_kernel(float* __restrict__ y, const float* __restrict__ x, float a, std::int64_t n) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) y[i] = fmaf(a, __ldg(x + i), static_cast<float>(blockIdx.x));
}

cudaError_t scale(cudaStream_t stream, float* y, const float* x, float a, std::int64_t n) {
    const cudaLaunchConfig_t config = shape(stream, static_cast<unsigned>((n + 255) / 256), 256);
    return cudaLaunchKernelEx(&config, scale_kernel, y, x, a, n);
}

__global__ void sum_kernel(double* y, const float* x, std::int64_t n, Fault fault) {
    double* const parts = shared<double>();
    double part = 0;
    for (std::int64_t i = threadIdx.x; i < n; i += blockDim.x) part += static_cast<double>(x[i]);
    parts[threadIdx.x] = part;
    if (fault == Fault::overrun) parts[blockDim.x] = part;
    if (fault == Fault::some_threads && threadIdx.x % 3 == 0) {
        __shfl_xor_sync(kAll, part, 1);
        return;
    }
    if (fault == Fault::other_barrier && threadIdx.x % 3 == 0)
        __syncthreads();
    else if (fault != Fault::no_barrier)
        __syncthreads();
    for (unsigned half = blockDim.x / 2; half != 0; half /= 2) {
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) *y = parts[0];
}

cudaError_t sum(cudaStream_t stream, double* y, const float* x, std::int64_t n, unsigned threads,
                Fault fault) {
    const cudaLaunchConfig_t config = shape(stream, 1, threads, threads * sizeof(double));
    return cudaLaunchKernelEx(&config, sum_kernel, y, x, n, fault);
}

template <class T>
__device__ T warp_sum(T value) {
#pragma unroll
    for (int lanes = 16; lanes != 0; lanes /= 2) value += __shfl_xor_sync(kAll, value, lanes);
    return value;
}

__global__ void shuffle_sum_kernel(double* y, const float* x, std::int64_t n) {
    double* const parts = shared<double>();
    double part = 0;
    for (std::int64_t i = threadIdx.x; i < n; i += blockDim.x) part += static_cast<double>(x[i]);
    part = warp_sum(part);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = part;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    part = threadIdx.x < blockDim.x / 32 ? parts[threadIdx.x] : 0.0;
    part = warp_sum(part);
    if (threadIdx.x == 0) *y = part;
}

cudaError_t sum_by_shuffles(cudaStream_t stream, double* y, const float* x, std::int64_t n,
                            unsigned threads) {
    const cudaLaunchConfig_t config = shape(stream, 1, threads, threads / 32 * sizeof(double));
    return cudaLaunchKernelEx(&config, shuffle_sum_kernel, y, x, n);
}

__global__ void exchange_kernel(std::int64_t* y) {
    const int lane = static_cast<int>(threadIdx.x);
    y[lane] = __shfl_sync(kAll, lane * 10, 5);
    y[32 + lane] = __shfl_sync(kAll, lane * 10, 3, 8);
    y[64 + lane] = static_cast<std::int64_t>(__shfl_xor_sync(kAll, static_cast<unsigned>(lane), 3));
    y[96 + lane] = static_cast<std::int64_t>(__shfl_down_sync(kAll, static_cast<float>(lane), 4));
    y[128 + lane] = static_cast<std::int64_t>(__ballot_sync(kAll, lane % 2));
    y[160 + lane] = __any_sync(kAll, lane == 9) + 2 * __all_sync(kAll, lane < 31);
    const unsigned half = lane < 16 ? 0xffffu : 0xffff0000u;
    if (lane < 16)
        y[192 + lane] = static_cast<std::int64_t>(__shfl_sync(half, 1.5 * lane, 1));
    else
        y[192 + lane] = static_cast<std::int64_t>(__shfl_sync(half, 2.5 * lane, 16));
    y[224 + lane] = static_cast<std::int64_t>(__shfl_down_sync(kAll, lane, 3, 16));
}

cudaError_t exchange(cudaStream_t stream, std::int64_t* y, unsigned lanes) {
    const cudaLaunchConfig_t config = shape(stream, 1, lanes);
    return cudaLaunchKernelEx(&config, exchange_kernel, y);
}

__global__ void pass_kernel(int* y, int rounds, Fault fault) {
    int* const cells = shared<int>();
    const unsigned self = threadIdx.x, other = self ^ 1u;
    if (fault == Fault::exited_lane && self == 3) return;
    int value = static_cast<int>(self);
    for (int round = 0; round < rounds; ++round) {
        cells[self] = value;
        if (fault != Fault::no_warp_barrier) __syncwarp();
        value = cells[other] + 1;
        __syncwarp();
    }
    y[self] = value;
}

cudaError_t pass_around(cudaStream_t stream, int* y, unsigned threads, int rounds, Fault fault) {
    const cudaLaunchConfig_t config = shape(stream, 1, threads, threads * sizeof(int));
    return cudaLaunchKernelEx(&config, pass_kernel, y, rounds, fault);
}

__global__ void count_kernel(int* y) {
    atomicAdd(y, 1);
    const unsigned x = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned inside = blockIdx.y < gridDim.y && threadIdx.z < blockDim.z;
    atomicMax(y + 1, static_cast<int>(x * inside));
}

cudaError_t count(cudaStream_t stream, int* y, dim3 grid, dim3 block) {
    const cudaLaunchConfig_t config = shape(stream, grid, block);
    return cudaLaunchKernelEx(&config, count_kernel, y);
}

__global__ void look_kernel(int* y, unsigned floats) {
    const float* const cells = shared<float>();
    bool all = true;
    for (unsigned i = threadIdx.x; i < floats; i += blockDim.x) all = all && isnan(cells[i]);
    const unsigned votes = __ballot_sync(kAll, all);
    __syncwarp();
    shared<float>()[threadIdx.x] = 1;
    if (threadIdx.x == 0) y[blockIdx.x] = votes == kAll;
}

cudaError_t look_at_shared(cudaStream_t stream, int* y, unsigned blocks, std::size_t bytes) {
    const cudaLaunchConfig_t config = shape(stream, blocks, 32, bytes);
    return cudaLaunchKernelEx(&config, look_kernel, y, bytes / sizeof(float));
}

__global__ void nothing_kernel() {}

cudaError_t nothing(cudaStream_t stream, dim3 grid, dim3 block, std::size_t shared_bytes) {
    const cudaLaunchConfig_t config = shape(stream, grid, block, shared_bytes);
    return cudaLaunchKernelEx(&config, nothing_kernel);
}

cudaError_t allow_shared(int bytes) {
    return cudaFuncSetAttribute(nothing_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

__global__ void barriers_kernel(int rounds) {
    for (int round = 0; round < rounds; ++round) __syncthreads();
}

cudaError_t barriers(cudaStream_t stream, dim3 grid, dim3 block, int rounds) {
    const cudaLaunchConfig_t config = shape(stream, grid, block);
    return cudaLaunchKernelEx(&config, barriers_kernel, rounds);
}

__global__ void shuffles_kernel(float* y, int rounds) {
    float value = static_cast<float>(threadIdx.x);
    for (int round = 0; round < rounds; ++round) value = __shfl_xor_sync(kAll, value, 1);
    if (value < 0) *y = value;
}

cudaError_t shuffles(cudaStream_t stream, float* y, dim3 grid, dim3 block, int rounds) {
    const cudaLaunchConfig_t config = shape(stream, grid, block);
    return cudaLaunchKernelEx(&config, shuffles_kernel, y, rounds);
}

}  // namespace maestro::kernels
