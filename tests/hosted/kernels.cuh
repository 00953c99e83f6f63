// Launch functions of the kernels that test the simulated runtime. All pointers are device memory. Each
// returns the result of cudaLaunchKernelEx().
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace maestro::kernels {

enum class Fault { none, no_barrier, no_warp_barrier, some_threads, other_barrier, exited_lane, overrun };

/// y[i] = a * x[i] + i / blockDim
cudaError_t scale(cudaStream_t stream, float* y, const float* x, float a, std::int64_t n);
/// y = the sum of x[0, n), by `threads` threads (a power of two): sum() uses shared memory, sum_by_shuffles()
/// warp shuffles.
cudaError_t sum(cudaStream_t stream, double* y, const float* x, std::int64_t n, unsigned threads,
                Fault fault);
cudaError_t sum_by_shuffles(cudaStream_t stream, double* y, const float* x, std::int64_t n, unsigned threads);
/// y[k][lane] = the result of the k-th kind of shuffle or vote, k < 8.
cudaError_t exchange(cudaStream_t stream, std::int64_t* y, unsigned lanes);
/// Adjacent lanes swap values through shared memory, `rounds` times; the result is y[thread].
cudaError_t pass_around(cudaStream_t stream, int* y, unsigned threads, int rounds, Fault fault);
/// y[0] = the number of threads in the grid, y[1] = the largest x index of a thread.
cudaError_t count(cudaStream_t stream, int* y, dim3 grid, dim3 block);
/// y[block] = whether the block's shared memory was NaN when it started.
cudaError_t look_at_shared(cudaStream_t stream, int* y, unsigned blocks, std::size_t bytes);
/// Kernels that do nothing, or only synchronize, for tests of launch limits and measurements of overhead.
cudaError_t nothing(cudaStream_t stream, dim3 grid, dim3 block, std::size_t shared_bytes);
cudaError_t barriers(cudaStream_t stream, dim3 grid, dim3 block, int rounds);
cudaError_t shuffles(cudaStream_t stream, float* y, dim3 grid, dim3 block, int rounds);
/// Allows nothing() to use `bytes` of dynamic shared memory.
cudaError_t allow_shared(int bytes);

}  // namespace maestro::kernels
