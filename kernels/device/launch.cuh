// Kernel launches and dispatch by data type.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <string>

#include "base/error.hpp"
#include "base/stream.hpp"
#include "kernels/array.hpp"

namespace maestro::kernels {

inline constexpr int kWarp = 32;

/// Launches kernel(arguments...) with `blocks` blocks of `threads` threads and `shared` bytes of dynamic
/// shared memory (at most 48 KiB, more would need an attribute). Launches nothing for 0 blocks. Throws
/// Error(broken_invariant) where the launch fails. Errors during execution surface in later CUDA calls.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), std::int64_t blocks, int threads, std::size_t shared,
            Stream stream, Arguments... arguments) {
    if (blocks == 0) return;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    const cudaError_t found = cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
    if (found != cudaSuccess)
        throw Error(ExitCode::broken_invariant,
                    std::string("a kernel of ") + std::to_string(blocks) + " x " + std::to_string(threads) +
                        " threads failed to launch: " + cudaGetErrorString(found));
}

/// Calls body(T{}) with T = float, bf16 or double.
template <class Body>
void by_type(DType type, Body&& body) {
    if (type == DType::f32)
        body(float{});
    else if (type == DType::bf16)
        body(bf16{});
    else if (type == DType::f64)
        body(double{});
    else
        throw Error(ExitCode::broken_invariant, std::string("no arithmetic on ") + name_of(type));
}

inline std::int64_t divide_up(std::int64_t size, std::int64_t by) {
    return (size + by - 1) / by;
}

/// Block size for a row of `items` items, one item per thread and iteration: whole warps, at most `most`
/// threads.
inline int row_threads(std::int64_t items, int most = 512) {
    const std::int64_t warps = divide_up(items, kWarp);
    return static_cast<int>(warps < 1 ? kWarp : warps * kWarp < most ? warps * kWarp : most);
}

}  // namespace maestro::kernels
