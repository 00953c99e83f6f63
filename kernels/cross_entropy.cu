#include "kernels/cross_entropy.hpp"

#include "kernels/device/arithmetic_type.cuh"
#include "kernels/device/block.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/logits.cuh"
#include "kernels/device/number.cuh"

namespace maestro::kernels {

namespace {

/// Of a row, in one reading (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018).
template <class A>
struct Softmax {
    A top = kLowest<A>, sum = 0;  ///< of exponentials, all of them below 1

    __device__ __forceinline__ void lift(A higher) {
        sum *= exp(top - higher);
        top = higher;
    }
};

template <int N>
inline constexpr int kAhead = N == 1 ? 8 : 4;  ///< packs

template <class A, int N>
__device__ __forceinline__ Softmax<A> softmax_of(const A* row, std::int64_t columns) {
    constexpr int K = kAhead<N>;
    const std::int64_t stride = blockDim.x * N;
    Softmax<A> found;
    for (std::int64_t c = threadIdx.x * N; c < columns; c += K * stride) {
        A values[K][N];
        read(row, c, stride, columns, values);
        found.lift(largest(values, found.top));
#pragma unroll
        for (int k = 0; k < K; ++k)
#pragma unroll
            for (int i = 0; i < N; ++i) found.sum += exp(values[k][i] - found.top);
    }
    found.lift(over_block(found.top, Max{}, kLowest<A>, shared_memory<A>()));
    found.sum = over_block(found.sum, Sum{}, A(0), shared_memory<A>());
    return found;
}

/// row becomes factor * softmax, less `weight` in the target's column. Backwards, because what softmax_of()
/// read last is still in the cache.
template <class A, int N>
__device__ __forceinline__ void differentiate(A* row, std::int64_t columns, A top, A factor, A weight,
                                              std::int64_t target) {
    constexpr int K = kAhead<N>;
    const std::int64_t stride = blockDim.x * N, step = K * stride;
    for (std::int64_t c = last_column(threadIdx.x * N, step, columns); c >= 0; c -= step) {
        A values[K][N];
        read(row, c, stride, columns, values);
#pragma unroll
        for (int k = 0; k < K; ++k) {
            const std::int64_t at = c + k * stride;
            if (at >= columns) break;
#pragma unroll
            for (int i = 0; i < N; ++i) {
                values[k][i] = factor * exp(values[k][i] - top);
                if (at + i == target) values[k][i] -= weight;
            }
            store<A, N>(values[k], row + at);
        }
    }
}

/// What steps keep for later ones, by row.
template <class A>
struct Kept {
    A *tops, *own_tops, *sums, *wanted;
};

/// The first step, the last one, or all of them: a block takes a row. A block on a multiprocessor is enough,
/// because there are few rows at a time; for more of them the compiler would spill.
template <class A, int N>
__global__ void __launch_bounds__(512, 1)
    take_rows(A* logits, Wanted wanted, std::int64_t columns, double scale, Kept<A> kept, double* losses,
              bool begins, bool ends) {
    const std::int64_t r = blockIdx.x;
    A* const row = logits + r * columns;
    const bool counts = wanted.counts(r);
    const std::int64_t target = wanted.column(r);
    Softmax<A> softmax{0, 0};
    A wanted_logit = 0;
    if (!begins) {
        softmax = {kept.tops[r], kept.sums[r]};
        wanted_logit = kept.wanted[r];
    } else if (counts) {
        if (target >= 0 && target < columns) wanted_logit = row[target];
        softmax = softmax_of<A, N>(row, columns);
        __syncthreads();  // all have read the target's logit, and one overwrites it
    }
    if (!ends) {
        if (threadIdx.x != 0) return;
        kept.tops[r] = kept.own_tops[r] = softmax.top;
        kept.sums[r] = softmax.sum;
        kept.wanted[r] = wanted_logit;
    } else if (!counts) {
        if (threadIdx.x == 0) losses[r] = 0;
        clear<A, N>(row, columns);
    } else {
        const double weight = scale * static_cast<double>(wanted.weights[r]);
        if (threadIdx.x == 0)
            losses[r] = weight * (static_cast<double>(softmax.top) + log(static_cast<double>(softmax.sum)) -
                                  static_cast<double>(wanted_logit));
        differentiate<A, N>(row, columns, softmax.top, static_cast<A>(weight) / softmax.sum,
                            static_cast<A>(weight), target);
    }
}

/// The second step: sums as they would be with the largest logits of all ranks.
template <class A>
__global__ void join_parts(Kept<A> kept, std::int64_t rows) {
    const std::int64_t r = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (r < rows) kept.sums[r] *= exp(kept.own_tops[r] - kept.tops[r]);
}

/// One block. The sum is one thread's, in the order of the rows, and does not depend on the block.
__global__ void add_in_order(const double* losses, std::int64_t size, double* sum) {
    double* const room = shared_memory<double>();
    double total = 0;
    for (std::int64_t begin = 0; begin < size; begin += blockDim.x) {
        const std::int64_t here = min(static_cast<std::int64_t>(blockDim.x), size - begin);
        if (threadIdx.x < here) room[threadIdx.x] = losses[begin + threadIdx.x];
        __syncthreads();
        if (threadIdx.x == 0)
            for (std::int64_t i = 0; i < here; ++i) total += room[i];
        __syncthreads();
    }
    if (threadIdx.x == 0) *sum += total;
}

struct Min {
    template <class A>
    __device__ A operator()(A x, A y) const {
        return x < y ? x : y;
    }
};

/// A block takes a row. As std::max_element: nothing is larger than NaN in the first place, and NaN is
/// larger than nothing.
template <class A, int N>
__global__ void __launch_bounds__(512)
    find_largest(const A* logits, std::int64_t columns, std::int32_t* ids, A* largest) {
    constexpr int K = kAhead<N>;
    constexpr std::int32_t kNone = std::numeric_limits<std::int32_t>::max();
    const std::int64_t r = blockIdx.x, stride = blockDim.x * N;
    const A* const row = logits + r * columns;
    A best = row[0];
    std::int32_t at = 0;
    for (std::int64_t c = threadIdx.x * N; c < columns; c += K * stride) {
        A values[K][N];
        read(row, c, stride, columns, values);
#pragma unroll
        for (int k = 0; k < K; ++k)
#pragma unroll
            for (int i = 0; i < N; ++i)
                if (values[k][i] > best) {
                    best = values[k][i];
                    at = static_cast<std::int32_t>(c + k * stride) + i;
                }
    }
    const A top = over_block(best, Max{}, row[0], shared_memory<A>());
    at = over_block(best < top ? kNone : at, Min{}, kNone, shared_memory<std::int32_t>());
    if (threadIdx.x != 0) return;
    ids[r] = at;
    largest[r] = row[at];
}

}  // namespace

void cross_entropy(Stream stream, LossSteps steps, const Array& logits, const Array& targets,
                   const Array& weights, double scale, std::int64_t first_token, const Array& tops,
                   const Array& own_tops, const Array& sums, const Array& losses) {
    by_arithmetic_type(logits.dtype, [&]<class A>(A) {
        const std::int64_t rows = logits.rows, columns = logits.columns;
        const Kept<A> kept{tops.as<A>(), own_tops.as<A>(), sums.as<A>(), sums.as<A>() + rows};
        if (!steps.begin() && !steps.end())
            return launch(join_parts<A>, divide_up(rows, 128), 128, 0, stream, kept, rows);
        by_pack<A>(
            [&]<int N>() {
                launch(take_rows<A, N>, rows, row_threads(columns / N), kBlockRoom<A>, stream, logits.as<A>(),
                       Wanted(targets, weights, first_token), columns, scale, kept, losses.as<double>(),
                       steps.begin(), steps.end());
            },
            columns, logits.as<A>());
    });
}

void add_up(Stream stream, const Array& losses, const Array& sum) {
    const int threads = 256;
    launch(add_in_order, losses.size() > 0 ? 1 : 0, threads, threads * sizeof(double), stream,
           losses.as<double>(), losses.size(), sum.as<double>());
}

void argmax_rows(Stream stream, const Array& logits, const Array& ids, const Array& values) {
    by_arithmetic_type(logits.dtype, [&]<class A>(A) {
        by_pack<A>(
            [&]<int N>() {
                launch(find_largest<A, N>, logits.rows, row_threads(logits.columns / N), kBlockRoom<A>,
                       stream, logits.as<A>(), logits.columns, ids.as<std::int32_t>(), values.as<A>());
            },
            logits.columns, logits.as<A>());
    });
}

}  // namespace maestro::kernels
