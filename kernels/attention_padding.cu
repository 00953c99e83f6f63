#include "kernels/attention_padding.hpp"

#include "kernels/device/launch.cuh"

namespace maestro::kernels {

namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    pad(const float* __restrict__ lse, const std::int32_t* __restrict__ rows, float* __restrict__ padded,
        std::int64_t size, std::int64_t heads, std::int64_t max_seqlen) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= size) return;
    const std::int64_t head = i % heads, row = rows[i / heads];
    padded[(row / max_seqlen * heads + head) * max_seqlen + row % max_seqlen] = lse[i];
}

}  // namespace

void pad_statistics(Stream stream, const Array& lse, const Array& rows, std::int64_t max_seqlen,
                    const Array& padded) {
    launch(pad, divide_up(lse.size(), kThreads), kThreads, 0, stream, lse.as<float>(),
           rows.as<std::int32_t>(), padded.as<float>(), lse.size(), lse.columns, max_seqlen);
}

}  // namespace maestro::kernels
