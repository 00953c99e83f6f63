// What a process sees of GPUs; in builds without CUDA none.
#pragma once

#include <cstddef>
#include <string>

namespace maestro::backend {

struct Gpus {
    int count = 0;
    std::string why_none;
};

Gpus find_gpus();
/// Bytes that nobody has taken.
std::size_t free_memory_of_gpu(int number);

}  // namespace maestro::backend
