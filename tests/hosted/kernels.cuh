// Launches of the kernels that the stand-in is tested with. Every pointer is to device memory; each returns
// what cudaLaunchKernelEx did.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace maestro::kernels {

enum class Fault { none, no_barrier, no_warp_barrier, some_threads, other_barrier, exited_lane, overrun };

/// y[i] = a * x[i] + i / blockDim
cudaError_t scale(cudaStream_t stream, float* y, const float* x, float a, std::int64_t n);
/// y = sum of x[0, n), by `threads` threads (a power of two); in shared memory, or by shuffles.
cudaError_t sum(cudaStream_t stream, double* y, const float* x, std::int64_t n, unsigned threads,
                Fault fault);
cudaError_t sum_by_shuffles(cudaStream_t stream, double* y, const float* x, std::int64_t n, unsigned threads);
/// Every kind of shuffle and vote, for lanes 0 to 31: y[k][lane], k < 8.
cudaError_t exchange(cudaStream_t stream, std::int64_t* y, unsigned lanes);
/// Neighbours within a warp swap values through shared memory, `rounds` times. y[thread].
cudaError_t pass_around(cudaStream_t stream, int* y, unsigned threads, int rounds, Fault fault);
/// y[0] = threads of the grid, y[1] the greatest x coordinate of a thread in it.
cudaError_t count(cudaStream_t stream, int* y, dim3 grid, dim3 block);
/// y[block] = whether its shared memory was NaN to begin with.
cudaError_t look_at_shared(cudaStream_t stream, int* y, unsigned blocks, std::size_t bytes);
/// Does nothing, or waits at barriers: shapes to be refused, and times to be taken.
cudaError_t nothing(cudaStream_t stream, dim3 grid, dim3 block, std::size_t shared_bytes);
cudaError_t barriers(cudaStream_t stream, dim3 grid, dim3 block, int rounds);
cudaError_t shuffles(cudaStream_t stream, float* y, dim3 grid, dim3 block, int rounds);
/// Lets `nothing` ask for so many bytes of shared memory.
cudaError_t allow_shared(int bytes);

}  // namespace maestro::kernels
