#include "kernels/cross_entropy.hpp"

#include "kernels/device/arithmetic_type.cuh"
#include "kernels/device/block.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/logits.cuh"
#include "kernels/device/vector_access.cuh"

namespace maestro::kernels {

namespace {

/// The maximum of a row and the sum of exponentials relative to it, computed in one pass (Milakov and
/// Gimelshein, "Online normalizer calculation for softmax", 2018).
template <class A>
struct Softmax {
    A max = kLowest<A>, sum = 0;

    /// Rescales the sum to a new maximum.
    __device__ __forceinline__ void raise_max(A new_max) {
        sum *= exp(max - new_max);
        max = new_max;
    }
};

template <int N>
inline constexpr int kVectorsInFlight = N == 1 ? 8 : 4;

template <class T, int N, class A = Accumulate<T>>
__device__ __forceinline__ Softmax<A> softmax_of(const T* row, std::int64_t columns) {
    constexpr int K = kVectorsInFlight<N>;
    const std::int64_t stride = blockDim.x * N;
    Softmax<A> found;
    for (std::int64_t c = threadIdx.x * N; c < columns; c += K * stride) {
        A values[K][N];
        load_vectors(row, c, stride, columns, values);
        found.raise_max(max_of(values, found.max));
#pragma unroll
        for (int k = 0; k < K; ++k)
#pragma unroll
            for (int i = 0; i < N; ++i) found.sum += exp(values[k][i] - found.max);
    }
    found.raise_max(block_reduce(found.max, Max{}, kLowest<A>, shared_memory<A>()));
    found.sum = block_reduce(found.sum, Sum{}, A(0), shared_memory<A>());
    return found;
}

/// Replaces the row with factor * softmax, minus `weight` in the target's column. Iterates backward, because
/// the columns that softmax_of() read last are still in the cache.
template <class T, int N, class A = Accumulate<T>>
__device__ __forceinline__ void differentiate(T* row, std::int64_t columns, A row_max, A factor, A weight,
                                              std::int64_t target) {
    constexpr int K = kVectorsInFlight<N>;
    const std::int64_t stride = blockDim.x * N, step = K * stride;
    for (std::int64_t c = last_column(threadIdx.x * N, step, columns); c >= 0; c -= step) {
        A values[K][N];
        load_vectors(row, c, stride, columns, values);
#pragma unroll
        for (int k = 0; k < K; ++k) {
            const std::int64_t at = c + k * stride;
            if (at >= columns) break;
#pragma unroll
            for (int i = 0; i < N; ++i) {
                values[k][i] = factor * exp(values[k][i] - row_max);
                if (at + i == target) values[k][i] -= weight;
            }
            store<T, N>(values[k], row + at);
        }
    }
}

/// State that a step leaves for the next ones, by row.
template <class A>
struct State {
    A *global_max, *local_max, *sums, *target_logits;
};

/// The first step, the last one, or all of them. A block handles one row. The launch bounds ask for one block
/// per multiprocessor: there are few rows at a time, and for two blocks the compiler would have to spill
/// registers.
template <class T, int N, class A = Accumulate<T>>
__global__ void __launch_bounds__(512, 1)
    softmax_rows(T* logits, Targets targets, std::int64_t columns, double scale, State<A> state,
                 double* losses, bool begins, bool ends) {
    const std::int64_t r = blockIdx.x;
    T* const row = logits + r * columns;
    const bool has_loss = targets.has_loss(r);
    const std::int64_t target = targets.column(r);
    Softmax<A> softmax{0, 0};
    A target_logit = 0;
    if (!begins) {
        softmax = {state.global_max[r], state.sums[r]};
        target_logit = state.target_logits[r];
    } else if (has_loss) {
        if (target >= 0 && target < columns) target_logit = widen(row[target]);
        softmax = softmax_of<T, N>(row, columns);
        __syncthreads();  // all threads have read the target's logit before one of them overwrites it
    }
    if (!ends) {
        if (threadIdx.x != 0) return;
        state.global_max[r] = state.local_max[r] = softmax.max;
        state.sums[r] = softmax.sum;
        state.target_logits[r] = target_logit;
    } else if (!has_loss) {
        if (threadIdx.x == 0) losses[r] = 0;
        fill_zero<T, N>(row, columns);
    } else {
        const double weight = scale * static_cast<double>(targets.weights[r]);
        if (threadIdx.x == 0)
            losses[r] = weight * (static_cast<double>(softmax.max) + log(static_cast<double>(softmax.sum)) -
                                  static_cast<double>(target_logit));
        differentiate<T, N>(row, columns, softmax.max, static_cast<A>(weight) / softmax.sum,
                            static_cast<A>(weight), target);
    }
}

/// The second step: rescales the sums to the maximum over all ranks.
template <class A>
__global__ void rescale_sums(State<A> state, std::int64_t rows) {
    const std::int64_t r = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (r < rows) state.sums[r] *= exp(state.local_max[r] - state.global_max[r]);
}

/// Sums by one block. The block stages the losses in shared memory; one thread adds them in the order of
/// rows, so that the sum does not depend on the block size. Several terms follow each other.
__global__ void sum_in_order(const double* losses, std::int64_t rows, std::int64_t terms, double* sums) {
    double* const smem = shared_memory<double>();
    double total = 0;
    for (std::int64_t t = 0; t < terms; ++t) {
        double of_term = 0;
        for (std::int64_t begin = 0; begin < rows; begin += blockDim.x) {
            const std::int64_t here = min(static_cast<std::int64_t>(blockDim.x), rows - begin);
            if (threadIdx.x < here) smem[threadIdx.x] = losses[t * rows + begin + threadIdx.x];
            __syncthreads();
            if (threadIdx.x == 0)
                for (std::int64_t i = 0; i < here; ++i) {
                    total += smem[i];
                    of_term += smem[i];
                }
            __syncthreads();
        }
        if (threadIdx.x == 0 && terms > 1) sums[1 + t] += of_term;
    }
    if (threadIdx.x == 0) sums[0] += total;
}

struct Min {
    template <class A>
    __device__ A operator()(A x, A y) const {
        return x < y ? x : y;
    }
};

/// A block handles one row. Ties and NaNs are resolved as by std::max_element: the first maximum wins, a NaN
/// in column 0 is the maximum, and NaNs in other columns are ignored.
template <class A, int N>
__global__ void __launch_bounds__(512)
    argmax(const A* logits, std::int64_t columns, std::int32_t* ids, A* largest) {
    constexpr int K = kVectorsInFlight<N>;
    constexpr std::int32_t kNoColumn = std::numeric_limits<std::int32_t>::max();
    const std::int64_t r = blockIdx.x, stride = blockDim.x * N;
    const A* const row = logits + r * columns;
    A best = row[0];
    std::int32_t at = 0;
    for (std::int64_t c = threadIdx.x * N; c < columns; c += K * stride) {
        A values[K][N];
        load_vectors(row, c, stride, columns, values);
#pragma unroll
        for (int k = 0; k < K; ++k)
#pragma unroll
            for (int i = 0; i < N; ++i)
                if (values[k][i] > best) {
                    best = values[k][i];
                    at = static_cast<std::int32_t>(c + k * stride) + i;
                }
    }
    const A row_max = block_reduce(best, Max{}, row[0], shared_memory<A>());
    at = block_reduce(best < row_max ? kNoColumn : at, Min{}, kNoColumn, shared_memory<std::int32_t>());
    if (threadIdx.x != 0) return;
    ids[r] = at;
    largest[r] = row[at];
}

}  // namespace

void cross_entropy(Stream stream, LossSteps steps, const Array& logits, const Array& targets,
                   const Array& weights, double scale, std::int64_t first_token, const Array& global_max,
                   const Array& local_max, const Array& sums, const Array& losses) {
    by_type(logits.dtype, [&]<class T>(T) {
        using A = Accumulate<T>;
        const std::int64_t rows = logits.rows, columns = logits.columns;
        const State<A> state{global_max.as<A>(), local_max.as<A>(), sums.as<A>(), sums.as<A>() + rows};
        if (!steps.begin() && !steps.end())
            return launch(rescale_sums<A>, divide_up(rows, 128), 128, 0, stream, state, rows);
        by_vector_size<T>(
            [&]<int N>() {
                launch(softmax_rows<T, N>, rows, row_threads(columns / N), kBlockReduceBytes<A>, stream,
                       logits.as<T>(), Targets(targets, weights, first_token), columns, scale, state,
                       losses.as<double>(), steps.begin(), steps.end());
            },
            columns, logits.as<T>());
    });
}

void sum_losses(Stream stream, const Array& losses, const Array& sums) {
    const int threads = 256;
    const std::int64_t terms = sums.size() > 1 ? sums.size() - 1 : 1;
    launch(sum_in_order, losses.size() > 0 ? 1 : 0, threads, threads * sizeof(double), stream,
           losses.as<double>(), losses.size() / terms, terms, sums.as<double>());
}

void argmax_rows(Stream stream, const Array& logits, const Array& ids, const Array& values) {
    by_arithmetic_type(logits.dtype, [&]<class A>(A) {
        by_vector_size<A>(
            [&]<int N>() {
                launch(argmax<A, N>, logits.rows, row_threads(logits.columns / N), kBlockReduceBytes<A>,
                       stream, logits.as<A>(), logits.columns, ids.as<std::int32_t>(), values.as<A>());
            },
            logits.columns, logits.as<A>());
    });
}

}  // namespace maestro::kernels
