// Elementwise kernels, for tensors of any shape.
#pragma once

#include "kernels/device/launch.cuh"
#include "kernels/device/vector_access.cuh"

namespace maestro::kernels {

inline constexpr int kForEachThreads = 256;

/// body.operator()<N>(i) processes the elements i to i + N - 1. The first `vectors` threads process N
/// elements each, from element `head` on. The next `singles` threads process one element each: those before
/// `head` and those behind the last vector.
template <int N, class Body>
__global__ void __launch_bounds__(kForEachThreads)
    for_each(Body body, std::int64_t head, std::int64_t vectors, std::int64_t singles) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < vectors) {
        body.template operator()<N>(head + i * N);
    } else if (i - vectors < singles) {
        const std::int64_t single = i - vectors;
        body.template operator()<1>(single < head ? single : vectors * N + single);
    }
}

/// Processes N elements at a time from element `head` on, and the others one by one.
template <int N, class Body>
void launch_for_each(Stream stream, const Body& body, std::int64_t size, std::int64_t head = 0) {
    const std::int64_t vectors = (size - head) / N, singles = size - vectors * N;
    launch(for_each<N, Body>, divide_up(vectors + singles, kForEachThreads), kForEachThreads, 0, stream, body,
           head, vectors, singles);
}

/// The first element at which all of these pointers are aligned to N elements; -1 if there is none.
template <int N, class... T>
std::int64_t first_aligned(const T*... pointers) {
    for (std::int64_t i = 0; i < N; ++i)
        if ((((reinterpret_cast<std::uintptr_t>(pointers) / sizeof(T) + static_cast<std::uintptr_t>(i)) % N ==
              0) &&
             ...))
            return i;
    return -1;
}

/// Processes N elements at a time where the pointers have a common alignment, else one at a time.
template <int N, class Body, class... T>
void launch_elementwise(Stream stream, const Body& body, std::int64_t size, const T*... pointers) {
    const std::int64_t head = first_aligned<N>(pointers...);
    if (head < 0)
        launch_for_each<1>(stream, body, size);
    else
        launch_for_each<N>(stream, body, size, head < size ? head : size);
}

}  // namespace maestro::kernels
