// The GPUs that are visible to a process. Builds without CUDA see none. Functions that take a device number
// throw Error(broken_invariant) where there is no GPU. What libraries take of a GPU's memory is known in
// every build, so that a run can be planned for GPUs where there are none.
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
/// Bytes of workspace that the backend allocates for GEMMs: what cuBLAS recommends for Hopper.
inline constexpr std::size_t kGemmWorkspace = std::size_t{32} << 20;
/// Bytes that it allocates for the trials of GEMMs which accumulate, with GemmOptions::autotune: 512 tiles of
/// 128 x 256 in fp32, which occupy the multiprocessors of an H100 almost four times.
inline constexpr std::size_t kGemmTrial = std::size_t{64} << 20;
// Estimates of memory that CUDA allocates by itself and does not report in advance. Not measured on a GPU
// yet.
inline constexpr std::size_t kCodeReserve = std::size_t{128} << 20;  ///< code of kernels, and their stacks
inline constexpr std::size_t kCudnnReserve = std::size_t{128}
                                             << 20;  ///< cuDNN's handle, kernels of its plans
/// `cudnn`: whether cuDNN computes attention.
LibraryMemory library_memory(GemmOptions gemm, bool cudnn);
LibraryMemory library_memory_of_gpu(int number, GemmOptions gemm);
/// Returns for example "NVIDIA H100 80GB HBM3 (architecture 9.0, 79 GiB, PCI 0000:10:00.0)".
std::string describe_gpu(int number);
/// Returns which of the visible GPUs have peer access to which others: "0 reaches 1; 1 reaches 0; 2 none".
std::string describe_peers();

}  // namespace maestro::backend
