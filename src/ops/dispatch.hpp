// Dispatch of CPU loops: over element types, and over the threads of the rank.
#pragma once

#include <omp.h>

#include <algorithm>
#include <utility>

#include "backend/backend.hpp"
#include "base/tensor.hpp"

/// Stands before a loop whose iterations are independent of each other. It is not `omp simd`, with which g++
/// 12 keeps temporary bf16 objects in memory and does not vectorise.
#if defined(__clang__)
#define MAESTRO_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define MAESTRO_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace maestro::ops {

/// Calls body(T{}) with T = float, bf16 or double according to `type`. Throws Error(broken_invariant) for
/// other types.
template <class Body>
void by_type(DType type, Body&& body) {
    switch (type) {
        case DType::f32:
            body(float{});
            return;
        case DType::bf16:
            body(bf16{});
            return;
        case DType::f64:
            body(double{});
            return;
        default:
            MAESTRO_FAIL("no arithmetic on {}", name_of(type));
    }
}

/// Returns the accumulation type of an element type, Accumulate<T> at run time: that of weight gradients,
/// statistics and logits for activations of this type.
inline DType accumulate_type(DType type) {
    return type == DType::f64 ? DType::f64 : DType::f32;
}

/// Below this work (in element operations) a loop runs on one thread: it takes some tens of microseconds, and
/// waking the threads takes a few.
inline constexpr std::int64_t kMinParallelWork = 1 << 16;

/// Calls body(i) for i in [0, n), on up to `threads` threads. `work_each` estimates the element operations of
/// one call. Each i must write results that no other i reads or writes, so that the number of threads changes
/// nothing.
template <class Body>
void parallel_for(std::int64_t n, std::int64_t work_each, int threads, Body&& body) {
    if (n > 1 && n * work_each > kMinParallelWork && threads > 1) {
#pragma omp parallel for schedule(static) num_threads(threads)
        for (std::int64_t i = 0; i < n; ++i) body(i);
    } else {
        for (std::int64_t i = 0; i < n; ++i) body(i);
    }
}

/// The same on all threads of the rank.
template <class Body>
void parallel_for(std::int64_t n, std::int64_t work_each, Body&& body) {
    parallel_for(n, work_each, omp_get_max_threads(), std::forward<Body>(body));
}

/// For sums over rows: divides the columns among the threads and calls body(begin, end) once for each part.
/// Each column is summed by one thread in the order of rows, so that the number of threads does not change
/// the result.
template <class Body>
void parallel_columns(std::int64_t columns, std::int64_t rows, Body&& body) {
    const std::int64_t threads = columns * rows > kMinParallelWork ? omp_get_max_threads() : 1;
    // Parts are whole cache lines of fp32, so that no two threads write to the same one (false sharing).
    const std::int64_t block = ((columns + threads - 1) / threads + 15) / 16 * 16;
    const std::int64_t blocks = block == 0 ? 0 : (columns + block - 1) / block;
    parallel_for(blocks, block * rows,
                 [&](std::int64_t i) { body(i * block, std::min(columns, (i + 1) * block)); });
}

}  // namespace maestro::ops
