// Dynamic shared memory. There is one array, because one block runs at a time. Kernels declare it in
// namespace maestro::kernels as `extern __shared__ __align__(16) unsigned char maestro_shared_memory[];`.
#pragma once

#include <cstddef>
#include <optional>

namespace hosted {

constexpr std::size_t kSharedBytes = 232'448;  ///< largest dynamic shared memory of a block
constexpr std::size_t kDefaultSharedBytes =
    49'152;  ///< limit without cudaFuncAttributeMaxDynamicSharedMemorySize

/// Makes the first `bytes` accessible for a launch. The address sanitizer guards the rest.
void open_shared_memory(std::size_t bytes);
/// Fills it with 0xff (NaN as floats) before each block, because a block must not rely on what another one
/// left.
void fill_shared_memory(std::size_t bytes);
/// Ends a launch. Returns the first byte that it wrote beyond its `bytes`, of those that are checked.
std::optional<std::size_t> close_shared_memory(std::size_t bytes);

}  // namespace hosted
