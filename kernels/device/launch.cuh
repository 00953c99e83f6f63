// How a kernel is started, and how it chooses its types.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <string>

#include "base/error.hpp"
#include "base/stream.hpp"
#include "kernels/array.hpp"

namespace maestro::kernels {

inline constexpr int kWarp = 32;

/// kernel(arguments...) over blocks x threads, with so many bytes of shared memory (at most 48 KiB); nothing
/// where there are no blocks. Throws what the runtime says at once; what goes wrong later, later calls say.
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
        throw Error(ExitCode::broken_invariant, std::string("a kernel of ") + std::to_string(blocks) + " x " +
                                                    std::to_string(threads) +
                                                    " threads was not started: " + cudaGetErrorString(found));
}

/// body(T{}) with T = float, bf16 or double.
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

/// Threads for a row of `items`, each of which one thread takes: whole warps, at most `most`.
inline int row_threads(std::int64_t items, int most = 512) {
    const std::int64_t warps = divide_up(items, kWarp);
    return static_cast<int>(warps < 1 ? kWarp : warps * kWarp < most ? warps * kWarp : most);
}

}  // namespace maestro::kernels
