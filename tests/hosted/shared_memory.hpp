// The shared memory of the one block that runs at a time. Kernels declare it, in namespace maestro::kernels,
// as `extern __shared__ __align__(16) unsigned char maestro_shared_memory[];`.
#pragma once

#include <cstddef>
#include <optional>

namespace hosted {

constexpr std::size_t kSharedBytes = 232'448;        ///< of a block that asks for more than it gets unasked
constexpr std::size_t kSharedBytesUnasked = 49'152;  ///< without cudaFuncAttributeMaxDynamicSharedMemorySize

/// Opens the first `bytes` to a launch; the address sanitizer guards the rest.
void open_shared_memory(std::size_t bytes);
/// Every byte 0xff (a float then is NaN), as no block may rely on what another left.
void fill_shared_memory(std::size_t bytes);
/// After the launch. The first byte that it wrote behind what it asked for, of those that are looked at.
std::optional<std::size_t> close_shared_memory(std::size_t bytes);

}  // namespace hosted
