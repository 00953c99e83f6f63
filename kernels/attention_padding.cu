#include "kernels/attention_padding.hpp"

#include "kernels/device/launch.cuh"

namespace maestro::kernels {

namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    pad(const float* __restrict__ lse, const std::int32_t* __restrict__ places, float* __restrict__ padded,
        std::int64_t size, std::int64_t heads, std::int64_t longest) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= size) return;
    const std::int64_t head = i % heads, place = places[i / heads];
    padded[(place / longest * heads + head) * longest + place % longest] = lse[i];
}

}  // namespace

void pad_statistics(Stream stream, const Array& lse, const Array& places, std::int64_t longest,
                    const Array& padded) {
    launch(pad, divide_up(lse.size(), kThreads), kThreads, 0, stream, lse.as<float>(),
           places.as<std::int32_t>(), padded.as<float>(), lse.size(), lse.columns, longest);
}

}  // namespace maestro::kernels
