// The simulated CUDA runtime: an implementation of the CUDA runtime on the host, for tests without a GPU.
// `hosted` in names means "simulated on the host". This header is its interface for tests and for the
// simulated libraries (cuBLASLt, cuDNN, NCCL). Work queued on streams runs late, in a random order among
// those that streams and events allow, so that missing synchronization shows. Host code that accesses device
// memory ends the program.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>

namespace hosted {

/// Queues work that may access device memory. `what` names it in messages and must be a string literal.
/// Returns cudaErrorInvalidResourceHandle where there is no such stream.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work, const char* what);

/// The same for work that other ranks participate in, such as a collective. `attempt` is called until it
/// returns true; it must not block. From then on streams also make progress while the host makes no calls,
/// because other ranks wait for the results.
cudaError_t enqueue_until(cudaStream_t stream, std::function<bool()> attempt, const char* what);

/// The host may access device memory during the lifetime of such an object.
struct Unlocked {
    Unlocked();
    ~Unlocked();
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;
};

/// Whether all of these bytes belong to one live device allocation.
bool is_device(const void* pointer, std::size_t bytes = 1);
/// Whether all of these bytes are pinned host memory.
bool is_pinned(const void* pointer, std::size_t bytes = 1);

/// Reseeds the random numbers. The initial seed is MAESTRO_HOSTED_SEED.
void seed(std::uint64_t value);

}  // namespace hosted
