// The second form of radix_sort.cu, by CUB's radix sort, which comes with CUDA.
#include <cub/device/device_radix_sort.cuh>
#include <string>

#include "base/error.hpp"
#include "kernels/device/launch.cuh"
#include "kernels/radix_sort.hpp"

namespace maestro::kernels::nvcc {

namespace {

constexpr int kThreads = 256;

/// Numbers the rows, and makes negative keys the largest one.
__global__ void __launch_bounds__(kThreads)
    number_rows(const std::int32_t* keys, std::int64_t rows, std::int32_t negative, std::uint32_t* sortable,
                std::int32_t* numbers) {
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (row >= rows) return;
    sortable[row] = static_cast<std::uint32_t>(keys[row] < 0 ? negative : keys[row]);
    numbers[row] = static_cast<std::int32_t>(row);
}

void check(cudaError_t found, const char* what) {
    if (found != cudaSuccess)
        throw Error(ExitCode::broken_invariant, std::string(what) + ": " + cudaGetErrorString(found));
}

}  // namespace

const std::int32_t* sort_rows(Stream stream, const RadixSort& sort, const std::int32_t* keys,
                              std::int32_t* scratch) {
    if (sort.rows == 0) return scratch;
    std::int32_t* const numbers = scratch;
    std::int32_t* const sorted = numbers + sort.rows;
    auto* const sortable = reinterpret_cast<std::uint32_t*>(sorted + sort.rows);
    std::uint32_t* const sorted_keys = sortable + sort.rows;
    // CUB's storage begins at a multiple of 256 bytes.
    const auto storage = (reinterpret_cast<std::uintptr_t>(sorted_keys + sort.rows) + 255) / 256 * 256;
    launch(number_rows, divide_up(sort.rows, kThreads), kThreads, 0, stream, keys, sort.rows,
           static_cast<std::int32_t>(sort.keys), sortable, numbers);
    cub::DoubleBuffer<std::uint32_t> key_buffers(sortable, sorted_keys);
    cub::DoubleBuffer<std::int32_t> row_buffers(numbers, sorted);
    const int bits = sort.passes * sort.digit_bits;
    const auto run = [&](void* memory, std::size_t& bytes) {
        check(cub::DeviceRadixSort::SortPairs(memory, bytes, key_buffers, row_buffers,
                                              static_cast<int>(sort.rows), 0, bits < 32 ? bits : 32, stream),
              "CUB's radix sort");
    };
    std::size_t bytes = 0;
    run(nullptr, bytes);
    if (bytes > sort.library_bytes())
        throw Error(ExitCode::broken_invariant, "CUB's radix sort of " + std::to_string(sort.rows) +
                                                    " rows needs " + std::to_string(bytes) + " bytes, " +
                                                    std::to_string(sort.library_bytes()) + " are planned");
    run(reinterpret_cast<void*>(storage), bytes);
    return row_buffers.Current();
}

}  // namespace maestro::kernels::nvcc
