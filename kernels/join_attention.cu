#include "kernels/join_attention.hpp"

#include <limits>

#include "kernels/device/arithmetic_type.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/vector_access.cuh"

namespace maestro::kernels {

namespace {

/// Combines two partial attention results over disjoint keys by their log-sum-exp. 2^log_lanes adjacent lanes
/// of a warp handle one head of one token.
template <class O, class A, int N>
__global__ void __launch_bounds__(256) join(const O* other_out, const A* other_lse, A* out, A* lse,
                                            std::int64_t heads, std::int64_t dim, int log_lanes) {
    const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const std::int64_t head = thread >> log_lanes;
    const int lanes = 1 << log_lanes, lane = static_cast<int>(threadIdx.x) & (lanes - 1);
    constexpr A kMinusInfinity = -std::numeric_limits<A>::infinity();
    const A out_lse = head < heads ? lse[head] : A(0),
            more_lse = head < heads ? other_lse[head] : kMinusInfinity;
    __syncwarp();  // all lanes of a head have read lse before one of them overwrites it
    if (more_lse == kMinusInfinity) return;
    const A max = out_lse > more_lse ? out_lse : more_lse;
    const A out_weight = exp(out_lse - max), other_weight = exp(more_lse - max),
            scale = A(1) / (out_weight + other_weight);
    A* const to = out + head * dim;
    const O* const from = other_out + head * dim;
    for (std::int64_t c = lane * N; c < dim; c += lanes * N) {
        A value[N], other_values[N];
        load<A, N>(to + c, value);
        load<O, N>(from + c, other_values);
#pragma unroll
        for (int i = 0; i < N; ++i)
            value[i] = (value[i] * out_weight + other_values[i] * other_weight) * scale;
        store<A, N>(value, to + c);
    }
    if (lane == 0) lse[head] = max + log(out_weight + other_weight);
}

}  // namespace

void join_attention(Stream stream, const Array& other_out, const Array& other_lse, const Array& out,
                    const Array& lse) {
    const std::int64_t heads = lse.size();
    if (heads == 0) return;
    const std::int64_t dim = out.size() / heads;
    by_arithmetic_type(out.dtype, [&]<class A>(A) {
        const auto launch_join = [&]<class O>(O) {
            by_vector_size<A>(
                [&]<int N>() {
                    const int threads = 256;
                    int log_lanes = 0;
                    while (log_lanes < 5 && (std::int64_t{N} << log_lanes) < dim) ++log_lanes;
                    launch(join<O, A, N>, divide_up(heads << log_lanes, threads), threads, 0, stream,
                           other_out.as<O>(), other_lse.as<A>(), out.as<A>(), lse.as<A>(), heads, dim,
                           log_lanes);
                },
                dim, other_out.as<O>(), out.as<A>());
        };
        if constexpr (std::is_same_v<A, float>)
            if (other_out.dtype == DType::bf16) return launch_join(bf16());
        launch_join(A());
    });
}

}  // namespace maestro::kernels
