// What a process sees of GPUs; in builds without CUDA none.
#pragma once

#include <string>

namespace maestro::backend {

struct Gpus {
    int count = 0;
    std::string why_none;
};

Gpus find_gpus();
/// Backend::attention_architecture() of its backend.
int attention_architecture_of_gpu(int number);

}  // namespace maestro::backend
