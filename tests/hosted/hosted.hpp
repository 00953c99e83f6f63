// A stand-in for CUDA on the CPU: what further stand-ins (cuBLASLt, NCCL) and tests may ask of it. Work is
// queued on a stream and runs late, in a random order that streams and events allow; device memory is closed
// to the host.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>

namespace hosted {

/// Queues work that may touch device memory. `what` is for messages and must outlive the program. It is the
/// invalid handle's error where there is no such stream.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work, const char* what);

/// The same for work that others must take part in (a collective): it is called until it returns true, which
/// it must do without waiting. From then on streams also run while the host calls nothing, since others wait
/// for their results.
cudaError_t enqueue_until(cudaStream_t stream, std::function<bool()> attempt, const char* what);

/// Device memory is readable and writable as long as one lives.
struct Unlocked {
    Unlocked();
    ~Unlocked();
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;
};

/// True if all of these bytes are of one live allocation of the device.
bool is_device(const void* pointer, std::size_t bytes = 1);
/// True if the host pinned all of these bytes.
bool is_pinned(const void* pointer, std::size_t bytes = 1);

/// Restarts the random numbers, which begin with MAESTRO_HOSTED_SEED.
void seed(std::uint64_t value);

}  // namespace hosted
