// Which device a process computes on: decided here and nowhere else.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "backend/backend.hpp"

namespace maestro::backend {

struct Device {
    bool gpu = false;
    int number = 0;      ///< among the GPUs that the process sees
    std::string reason;  ///< for the log
    GemmOptions gemm = {};
};

/// `wanted` is "auto" (a GPU where there is one), "cpu" or "cuda". Process `index` of the `count` on a host
/// takes GPU index % GPUs. Error(bad_deck) where there is no GPU, or none was built for.
Device choose_device(const std::string& wanted, int index, int count, GemmOptions gemm = {});
/// `threads` of this process.
Traits traits_of(const Device& device, int threads);
std::unique_ptr<Backend> open_device(const Device& device, int threads);
/// Takes what CUDA itself takes of the GPU's memory for a process, some hundred MiB. Error(device_memory).
void open_context(const Device& device);
/// Bytes of a GPU's memory that nobody has taken. The device is one.
std::size_t free_memory(const Device& device);

}  // namespace maestro::backend
