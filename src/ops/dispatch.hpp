// Chooses the instantiation of a CPU loop by the element type of a tensor.
#pragma once

#include <omp.h>

#include <algorithm>
#include <utility>

#include "backend/backend.hpp"
#include "base/tensor.hpp"

/// Before a loop whose turns do not touch each other's elements. Not `omp simd`: with it g++ 12 keeps the
/// temporary objects of bf16 in memory and does not vectorise.
#if defined(__clang__)
#define MAESTRO_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define MAESTRO_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace maestro::ops {

/// Calls body(T{}) with T = float, bf16 or double as `type` says; anything else is a broken invariant.
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

/// The type of weight gradients, of statistics and of logits for activations of type T: what Accumulate<T>
/// says.
inline DType accumulate_type(DType type) {
    return type == DType::f64 ? DType::f64 : DType::f32;
}

/// body(i) for i in [0, n), over at most `threads` threads where there is enough work to pay for waking them.
/// Every i writes its own result, so the number of threads does not change it.
template <class Body>
void parallel_for(std::int64_t n, std::int64_t work_each, int threads, Body&& body) {
    constexpr std::int64_t kWorth = 1 << 16;  // some tens of microseconds, against a few to wake the threads
    if (n > 1 && n * work_each > kWorth && threads > 1) {
#pragma omp parallel for schedule(static) num_threads(threads)
        for (std::int64_t i = 0; i < n; ++i) body(i);
    } else {
        for (std::int64_t i = 0; i < n; ++i) body(i);
    }
}

/// The same over the rank's threads.
template <class Body>
void parallel_for(std::int64_t n, std::int64_t work_each, Body&& body) {
    parallel_for(n, work_each, omp_get_max_threads(), std::forward<Body>(body));
}

/// Columns [begin, end) of this thread, for sums over rows: body(begin, end) once per thread, disjoint, so
/// that each column is summed in row order whatever the number of threads.
template <class Body>
void parallel_columns(std::int64_t columns, std::int64_t rows, Body&& body) {
    constexpr std::int64_t kWorth = 1 << 16;
    const std::int64_t threads = columns * rows > kWorth ? omp_get_max_threads() : 1;
    // Whole cache lines of fp32: two threads never write to one.
    const std::int64_t block = ((columns + threads - 1) / threads + 15) / 16 * 16;
    const std::int64_t blocks = block == 0 ? 0 : (columns + block - 1) / block;
    parallel_for(blocks, block * rows,
                 [&](std::int64_t i) { body(i * block, std::min(columns, (i + 1) * block)); });
}

}  // namespace maestro::ops
