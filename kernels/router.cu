#include "kernels/router.hpp"

#include <limits>

#include "kernels/device/arithmetic_type.cuh"
#include "kernels/device/block.cuh"
#include "kernels/device/lanes.cuh"
#include "kernels/device/logits.cuh"
#include "kernels/device/sigmoid.cuh"

namespace maestro::kernels {

namespace {

constexpr int kWarpShift = 5;  ///< a warp processes a row: 2^5 lanes, each with every 32nd expert

/// An expert among those that are chosen by their keys.
template <class A>
struct Candidate {
    A key;
    std::int32_t expert;

    /// In descending order of keys; of equal ones the lower number comes first.
    __device__ __forceinline__ bool before(const Candidate& other) const {
        return key > other.key || (key == other.key && expert < other.expert);
    }
};

/// The first candidate of all lanes of a warp, for all of them.
template <class A>
__device__ __forceinline__ Candidate<A> first_of_warp(Candidate<A> best) {
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
        const Candidate<A> other{__shfl_xor_sync(0xffffffffu, best.key, distance),
                                 __shfl_xor_sync(0xffffffffu, best.expert, distance)};
        if (other.before(best)) best = other;
    }
    return best;
}

/// scores = the scores of a row, each written by the lane that has this expert.
template <class A>
__device__ __forceinline__ void score_row(const A* logits, int experts, int lane, bool by_sigmoid,
                                          A* scores) {
    if (by_sigmoid) {
        for (int e = lane; e < experts; e += kWarp) scores[e] = sigmoid(logits[e]);
        return;
    }
    A max = kLowest<A>, sum = 0;
    for (int e = lane; e < experts; e += kWarp) max = Max{}(logits[e], max);
    max = warp_reduce(max, Max{});
    for (int e = lane; e < experts; e += kWarp) sum += scores[e] = exp(logits[e] - max);
    const A factor = A(1) / warp_reduce(sum, Sum{});
    for (int e = lane; e < experts; e += kWarp) scores[e] *= factor;
}

/// Each of k passes over a row finds the first candidate behind the one of the pass before.
template <class A>
__global__ void __launch_bounds__(kLaneThreads)
    choose_experts(const A* logits, const A* bias, A* scores, std::int32_t* choice, A* weight,
                   std::int64_t rows, int experts, int k, bool by_sigmoid, bool normalize) {
    constexpr A kInfinity = std::numeric_limits<A>::infinity();
    const Lanes lanes{kWarpShift};
    const std::int64_t row = lanes.row();
    const int lane = lanes.lane();
    if (row >= rows) return;
    scores += row * experts;
    choice += row * k;
    weight += row * k;
    score_row(logits + row * experts, experts, lane, by_sigmoid, scores);
    __syncwarp();  // lanes read the scores of each other below
    A sum = 0;
    Candidate<A> last{kInfinity, -1};
    for (int j = 0; j < k; ++j) {
        Candidate<A> best{-kInfinity, experts};
#pragma unroll 2
        for (int e = lane; e < experts; e += kWarp) {
            const A value = bias ? scores[e] + bias[e] : scores[e];
            const Candidate<A> here{value == value ? value : kInfinity, e};
            if (last.before(here) && here.before(best)) best = here;
        }
        last = first_of_warp(best);
        const A score = scores[last.expert];
        sum += score;
        if (lane != j % kWarp) continue;
        choice[j] = last.expert;
        weight[j] = score;
    }
    if (!normalize) return;
    const A factor = A(1) / (sum + static_cast<A>(kRouterEpsilon));
    for (int j = lane; j < k; j += kWarp) weight[j] *= factor;  // the lane's own
}

/// The gradient passes through the division by the sum, which all chosen scores are part of, and through the
/// scores.
template <class A>
__global__ void __launch_bounds__(kLaneThreads)
    backward(const A* d_weight, const A* scores, const std::int32_t* choice, A* d_logits, std::int64_t rows,
             int experts, int k, bool by_sigmoid, bool normalize) {
    const Lanes lanes{kWarpShift};
    const std::int64_t row = lanes.row();
    const int lane = lanes.lane();
    if (row >= rows) return;
    d_weight += row * k;
    choice += row * k;
    scores += row * experts;
    d_logits += row * experts;
    A factor = 1, shared = 0;  // `shared`: what the division takes from the gradient of each weight
    if (normalize) {
        A total = 0;
        for (int j = lane; j < k; j += kWarp) {
            total += scores[choice[j]];
            shared += d_weight[j] * scores[choice[j]];
        }
        factor = A(1) / (warp_reduce(total, Sum{}) + static_cast<A>(kRouterEpsilon));
        shared = warp_reduce(shared, Sum{}) * factor;
    }
    A mean = 0;
    if (!by_sigmoid) {
        for (int j = lane; j < k; j += kWarp) mean += (d_weight[j] - shared) * factor * scores[choice[j]];
        mean = warp_reduce(mean, Sum{});
    }
    for (int e = lane; e < experts; e += kWarp) d_logits[e] = by_sigmoid ? A(0) : -mean * scores[e];
    __syncwarp();  // those of the chosen experts are overwritten by other lanes
    for (int j = lane; j < k; j += kWarp) {
        const A s = scores[choice[j]], d_score = (d_weight[j] - shared) * factor;
        d_logits[choice[j]] = by_sigmoid ? d_score * s * (A(1) - s) : (d_score - mean) * s;
    }
}

template <class A>
__global__ void __launch_bounds__(kLaneThreads)
    balance(const A* scores, const std::int32_t* group, const A* chosen, const A* factor, A* d_logits,
            double* losses, std::int64_t rows, int experts, bool by_sigmoid) {
    const Lanes lanes{kWarpShift};
    const std::int64_t row = lanes.row();
    const int lane = lanes.lane();
    if (row >= rows) return;
    const std::int64_t of_row = group[row];
    scores += row * experts;
    d_logits += row * experts;
    chosen += of_row * experts;
    A total = 0, mean = 0;
    for (int e = lane; e < experts; e += kWarp) {
        total += scores[e];
        mean += chosen[e] * scores[e];
    }
    total = by_sigmoid ? warp_reduce(total, Sum{}) : A(1);
    mean = warp_reduce(mean, Sum{}) / total;
    if (losses && lane == 0) losses[row] = static_cast<double>(factor[of_row]) * static_cast<double>(mean);
    const A scale = factor[of_row] / total;
    for (int e = lane; e < experts; e += kWarp)
        d_logits[e] += scale * (chosen[e] - mean) * scores[e] * (by_sigmoid ? A(1) - scores[e] : A(1));
}

}  // namespace

void route(Stream stream, const Array& logits, const Array& bias, bool sigmoid, bool normalize,
           const Array& scores, const Array& choice, const Array& weight) {
    by_arithmetic_type(logits.dtype, [&]<class A>(A) {
        launch(choose_experts<A>, Lanes{kWarpShift}.blocks(logits.rows), kLaneThreads, 0, stream,
               logits.as<A>(), bias.as<A>(), scores.as<A>(), choice.as<std::int32_t>(), weight.as<A>(),
               logits.rows, logits.columns, choice.columns, sigmoid, normalize);
    });
}

void route_backward(Stream stream, const Array& d_weight, const Array& scores, const Array& choice,
                    bool sigmoid, bool normalize, const Array& d_logits) {
    by_arithmetic_type(scores.dtype, [&]<class A>(A) {
        launch(backward<A>, Lanes{kWarpShift}.blocks(scores.rows), kLaneThreads, 0, stream, d_weight.as<A>(),
               scores.as<A>(), choice.as<std::int32_t>(), d_logits.as<A>(), scores.rows, scores.columns,
               choice.columns, sigmoid, normalize);
    });
}

void balance_backward(Stream stream, const Array& scores, const Array& group, const Array& chosen,
                      const Array& factor, bool sigmoid, const Array& d_logits, const Array& losses) {
    by_arithmetic_type(scores.dtype, [&]<class A>(A) {
        launch(balance<A>, Lanes{kWarpShift}.blocks(scores.rows), kLaneThreads, 0, stream, scores.as<A>(),
               group.as<std::int32_t>(), chosen.as<A>(), factor.as<A>(), d_logits.as<A>(),
               losses.as<double>(), scores.rows, scores.columns, sigmoid);
    });
}

}  // namespace maestro::kernels
