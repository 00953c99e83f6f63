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
/// Backend::attention_architecture() of its backend, unless the library fails when it is opened.
int attention_architecture_of_gpu(int number);
/// Where it is on its host: "0000:10:00.0".
std::string bus_of_gpu(int number);
/// For processes of all hosts to compare: equal words mean the same GPU, whatever its number in a process. By
/// the host's kernel and the bus, as NCCL tells them apart; parts of a GPU share these.
std::string identity_of_gpu(int number);
/// Bytes that libraries take of a GPU for a process, beside its context and what it allocates of the arenas.
struct LibraryMemory {
    std::size_t workspace = 0;  ///< the backend's own allocations
    std::size_t reserve = 0;    ///< estimated: handles, and code that is loaded as it is first used
};
LibraryMemory library_memory_of_gpu(int number);
/// "NVIDIA H100 80GB HBM3 (architecture 9.0, 79 GiB, PCI 0000:10:00.0)"
std::string describe_gpu(int number);
/// Which of the GPUs that the process sees reach which others' memory: "0 reaches 1; 1 reaches 0; 2 none".
std::string describe_peers();

}  // namespace maestro::backend
