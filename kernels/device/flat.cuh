// Element by element, whatever the shape.
#pragma once

#include "kernels/device/launch.cuh"
#include "kernels/device/number.cuh"

namespace maestro::kernels {

inline constexpr int kFlatThreads = 256;

/// body.operator()<N>(i) takes elements i to i + N - 1: first `packs` times from `head` on, then one by one
/// the `rest`, before and behind.
template <int N, class Body>
__global__ void __launch_bounds__(kFlatThreads)
    for_each(Body body, std::int64_t head, std::int64_t packs, std::int64_t rest) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < packs) {
        body.template operator()<N>(head + i * N);
    } else if (i - packs < rest) {
        const std::int64_t single = i - packs;
        body.template operator()<1>(single < head ? single : packs * N + single);
    }
}

/// From element `head` on N at a time, the rest one by one.
template <int N, class Body>
void launch_flat(Stream stream, const Body& body, std::int64_t size, std::int64_t head = 0) {
    const std::int64_t packs = (size - head) / N, rest = size - packs * N;
    launch(for_each<N, Body>, divide_up(packs + rest, kFlatThreads), kFlatThreads, 0, stream, body, head,
           packs, rest);
}

/// The first element of which all of these pointers have an address for words of N; -1 if there is none.
template <int N, class... T>
std::int64_t first_word(const T*... pointers) {
    for (std::int64_t i = 0; i < N; ++i)
        if ((((reinterpret_cast<std::uintptr_t>(pointers) / sizeof(T) + static_cast<std::uintptr_t>(i)) % N ==
              0) &&
             ...))
            return i;
    return -1;
}

/// N at a time as far as the addresses allow.
template <int N, class Body, class... T>
void each_element(Stream stream, const Body& body, std::int64_t size, const T*... pointers) {
    const std::int64_t head = first_word<N>(pointers...);
    if (head < 0)
        launch_flat<1>(stream, body, size);
    else
        launch_flat<N>(stream, body, size, head < size ? head : size);
}

}  // namespace maestro::kernels
