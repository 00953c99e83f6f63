// The choice of the device that a process computes on.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "backend/backend.hpp"

namespace maestro::backend {

struct Device {
    bool gpu = false;
    int number = 0;      ///< CUDA device number, among the GPUs that are visible to the process
    std::string reason;  ///< why this device, for the log
    GemmOptions gemm = {};
};

/// Sets what CUDA and NCCL read from the environment, unless it is set there. To be called before anything
/// uses them. CUDA_DEVICE_MAX_CONNECTIONS becomes 32, its maximum, and NCCL_RUNTIME_CONNECT 0: ranks then
/// connect when a group is made, and not at its first operation of each kind.
void set_library_environment();
/// The hardware queues that the streams of a GPU share, by CUDA_DEVICE_MAX_CONNECTIONS. In a queue, work of
/// one stream waits behind that of another one, which may wait for other ranks.
int hardware_queues();
/// Streams that this process has on its GPUs, apart from those within libraries. 0 in a build without CUDA.
int count_streams();

/// Chooses the device for process `index` of the `count` on a host. `wanted` is "auto" (a GPU if there is
/// one), "cpu" or "cuda". GPUs are assigned round-robin. Throws Error(bad_deck) where "cuda" is wanted and
/// there is no GPU or the program was built without CUDA.
Device choose_device(const std::string& wanted, int index, int count, GemmOptions gemm = {});
/// Returns the traits that the device's backend will have, without opening it. `threads` are those of this
/// process.
Traits traits_of(const Device& device, int threads);
/// Returns the backend of the device. Throws Error(device_memory).
std::unique_ptr<Backend> open_device(const Device& device, int threads);
/// Creates the CUDA context of the process, which takes some hundred MiB of the GPU's memory. Throws
/// Error(device_memory).
void open_context(const Device& device);
/// Returns the free bytes of the GPU's memory. The device must be a GPU.
std::size_t free_memory(const Device& device);

}  // namespace maestro::backend
