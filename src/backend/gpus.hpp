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
/// "NVIDIA H100 80GB HBM3 (architecture 9.0, 79 GiB, PCI 0000:10:00.0)"
std::string describe_gpu(int number);
/// Which of the GPUs that the process sees reach which others' memory: "0 reaches 1; 1 reaches 0; 2 none".
std::string describe_peers();

}  // namespace maestro::backend
