// The GPUs that are visible to a process. Builds without CUDA see none. Functions that take a device number
// throw Error(broken_invariant) where there is no GPU.
#pragma once

#include <cstddef>
#include <string>

#include "backend/backend.hpp"

namespace maestro::backend {

struct Gpus {
    int count = 0;
    std::string why_none;  ///< the reason where count is 0
};

Gpus find_gpus();
/// Returns the Backend::attention_support() that the GPU's backend will have, provided that the library can
/// be opened.
AttentionSupport attention_support_of_gpu(int number);
/// Returns the PCI bus id of a GPU: "0000:10:00.0".
std::string bus_of_gpu(int number);
/// Returns an identity that processes of all hosts can compare. It consists of the host's boot id and the PCI
/// bus id, by which NCCL identifies GPUs too; the MIG instances of one GPU have the same.
std::string identity_of_gpu(int number);
/// Bytes of GPU memory that libraries use in a process, beside the CUDA context and the arenas.
struct LibraryMemory {
    std::size_t workspace = 0;  ///< allocated by the backend, which needs more to benchmark GEMMs
    std::size_t reserve = 0;    ///< estimate: handles, and modules that are loaded at their first use
};
LibraryMemory library_memory_of_gpu(int number, GemmOptions gemm);
/// Returns for example "NVIDIA H100 80GB HBM3 (architecture 9.0, 79 GiB, PCI 0000:10:00.0)".
std::string describe_gpu(int number);
/// Returns which of the visible GPUs have peer access to which others: "0 reaches 1; 1 reaches 0; 2 none".
std::string describe_peers();

}  // namespace maestro::backend
