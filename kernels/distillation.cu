#include "kernels/distillation.hpp"

#include "kernels/device/block.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/logits.cuh"
#include "kernels/device/vector_access.cuh"

namespace maestro::kernels {

namespace {

/// The largest logits of a row.
template <class A>
struct Maxima {
    A student = kLowest<A>, teacher = kLowest<A>;
};

/// Sums over a row, computed in one pass, relative to the largest logits so far. "Soft" sums are of
/// exponentials at the temperature.
template <class A>
struct Sums {
    A hard = 0;                            ///< the student's exponentials at temperature 1
    A student_soft = 0, teacher_soft = 0;  ///< the student's and the teacher's soft exponentials
    A divergence_sum = 0;  ///< the teacher's soft exponentials times log(teacher's / student's)

    /// Rescales the sums from some maxima to others. The logarithms in divergence_sum shift by a difference
    /// of maxima, which may overflow before the first element; the sum is zero then.
    __device__ __forceinline__ void rescale(const Maxima<A>& from, const Maxima<A>& to,
                                            A inverse_temperature) {
        const A student = inverse_temperature * (from.student - to.student),
                teacher = inverse_temperature * (from.teacher - to.teacher);
        const A teacher_scale = exp(teacher);
        hard *= exp(from.student - to.student);
        student_soft *= exp(student);
        divergence_sum =
            teacher_soft == 0 ? A(0) : teacher_scale * (divergence_sum + teacher_soft * (teacher - student));
        teacher_soft *= teacher_scale;
    }
};

template <int N>
inline constexpr int kVectorsInFlight = N == 1 ? 4 : 2;  ///< of each of the two rows

/// Returns a row's sums over all threads of the block, and its maxima in `maxima`.
template <class T, int N, class A = Accumulate<T>>
__device__ __forceinline__ Sums<A> sums_of(const T* student, const T* teacher, std::int64_t columns,
                                           A inverse_temperature, Maxima<A>& maxima) {
    constexpr int K = kVectorsInFlight<N>;
    const std::int64_t stride = blockDim.x * N;
    Sums<A> sums;
    for (std::int64_t c = threadIdx.x * N; c < columns; c += K * stride) {
        A q[K][N], p[K][N];
        load_vectors(student, c, stride, columns, q);
        load_vectors(teacher, c, stride, columns, p);
        const Maxima<A> before = maxima;
        maxima = {max_of(q, maxima.student), max_of(p, maxima.teacher)};
        sums.rescale(before, maxima, inverse_temperature);
#pragma unroll
        for (int k = 0; k < K; ++k) {
            if (c + k * stride >= columns) break;
#pragma unroll
            for (int i = 0; i < N; ++i) {
                const A log_q = inverse_temperature * (q[k][i] - maxima.student),
                        log_p = inverse_temperature * (p[k][i] - maxima.teacher);
                const A teacher_soft = exp(log_p);
                sums.hard += exp(q[k][i] - maxima.student);
                sums.student_soft += exp(log_q);
                sums.teacher_soft += teacher_soft;
                sums.divergence_sum += teacher_soft * (log_p - log_q);
            }
        }
    }
    A* const smem = shared_memory<A>();
    const Maxima<A> local = maxima;
    maxima = {block_reduce(local.student, Max{}, kLowest<A>, smem),
              block_reduce(local.teacher, Max{}, kLowest<A>, smem)};
    sums.rescale(local, maxima, inverse_temperature);
    return {block_reduce(sums.hard, Sum{}, A(0), smem), block_reduce(sums.student_soft, Sum{}, A(0), smem),
            block_reduce(sums.teacher_soft, Sum{}, A(0), smem),
            block_reduce(sums.divergence_sum, Sum{}, A(0), smem)};
}

/// Factors of a row's exponentials in the gradient.
template <class A>
struct Factors {
    A hard, student_soft, teacher_soft;
    A target;  ///< subtracted in the target's column
};

/// Replaces the student's row with its gradient. Iterates backward, because the columns that sums_of() read
/// last are still in the cache.
template <class T, int N, class A = Accumulate<T>>
__device__ __forceinline__ void differentiate(T* student, const T* teacher, std::int64_t columns,
                                              A inverse_temperature, const Maxima<A>& maxima,
                                              const Factors<A>& factors, std::int64_t target) {
    constexpr int K = kVectorsInFlight<N>;
    const std::int64_t stride = blockDim.x * N, step = K * stride;
    for (std::int64_t c = last_column(threadIdx.x * N, step, columns); c >= 0; c -= step) {
        A q[K][N], p[K][N];
        load_vectors(student, c, stride, columns, q);
        load_vectors(teacher, c, stride, columns, p);
#pragma unroll
        for (int k = 0; k < K; ++k) {
            const std::int64_t at = c + k * stride;
            if (at >= columns) break;
#pragma unroll
            for (int i = 0; i < N; ++i) {
                A hard = factors.hard * exp(q[k][i] - maxima.student);
                if (at + i == target) hard -= factors.target;
                q[k][i] =
                    hard + (factors.student_soft * exp(inverse_temperature * (q[k][i] - maxima.student)) -
                            factors.teacher_soft * exp(inverse_temperature * (p[k][i] - maxima.teacher)));
            }
            store<T, N>(q[k], student + at);
        }
    }
}

/// State that a step leaves for the next ones, by row.
template <class A>
struct State {
    A *global_max, *local_max, *sums;
    std::int64_t rows;

    __device__ Maxima<A> maxima_of(const A* from, std::int64_t r) const { return {from[r], from[rows + r]}; }
    __device__ Sums<A> sums_of(std::int64_t r) const {
        return {sums[r], sums[rows + r], sums[2 * rows + r], sums[3 * rows + r]};
    }
    __device__ A& logit(std::int64_t r) const { return sums[4 * rows + r]; }  ///< of the target
    __device__ void store(const Maxima<A>& value, A* to, std::int64_t r) const {
        to[r] = value.student;
        to[rows + r] = value.teacher;
    }
    __device__ void store(const Sums<A>& value, std::int64_t r) const {
        sums[r] = value.hard;
        sums[rows + r] = value.student_soft;
        sums[2 * rows + r] = value.teacher_soft;
        sums[3 * rows + r] = value.divergence_sum;
    }
};

/// The first step, the last one, or all of them. A block handles one row. The launch bounds ask for one block
/// per multiprocessor: there are few rows at a time, and for two blocks the compiler would have to spill
/// registers.
template <class T, int N, class A = Accumulate<T>>
__global__ void __launch_bounds__(512, 1)
    distillation_rows(T* students, const T* teachers, Targets targets, std::int64_t columns, Mixture mixture,
                      State<A> state, double* losses, bool begins, bool ends) {
    const std::int64_t r = blockIdx.x;
    T* const student = students + r * columns;
    const T* const teacher = teachers + r * columns;
    const A inverse_temperature = static_cast<A>(1 / mixture.temperature);
    const bool has_loss = targets.has_loss(r);
    const std::int64_t target = targets.column(r);
    Maxima<A> maxima{0, 0};
    Sums<A> sums;
    A logit = 0;
    if (!begins) {
        maxima = state.maxima_of(state.global_max, r);
        sums = state.sums_of(r);
        logit = state.logit(r);
    } else if (has_loss) {
        if (target >= 0 && target < columns) logit = widen(student[target]);
        maxima = {};
        sums = sums_of<T, N>(student, teacher, columns, inverse_temperature, maxima);
        __syncthreads();  // all threads have read the target's logit before one of them overwrites it
    }
    if (!ends) {
        if (threadIdx.x != 0) return;
        state.store(maxima, state.global_max, r);
        state.store(maxima, state.local_max, r);
        state.store(sums, r);
        state.logit(r) = logit;
    } else if (!has_loss) {
        if (threadIdx.x == 0) losses[r] = losses[state.rows + r] = 0;
        fill_zero<T, N>(student, columns);
    } else {
        const auto weight = static_cast<double>(targets.weights[r]);
        const double hard = mixture.hard * weight, soft = mixture.soft * weight;
        if (threadIdx.x == 0) {
            const auto all = static_cast<double>(sums.teacher_soft);
            const double divergence = static_cast<double>(sums.divergence_sum) / all - log(all) +
                                      log(static_cast<double>(sums.student_soft));
            losses[r] = hard * (static_cast<double>(maxima.student) + log(static_cast<double>(sums.hard)) -
                                static_cast<double>(logit));
            losses[state.rows + r] = soft * mixture.temperature * mixture.temperature * divergence;
        }
        const A slope = static_cast<A>(soft * mixture.temperature);
        differentiate<T, N>(student, teacher, columns, inverse_temperature, maxima,
                            Factors<A>{static_cast<A>(hard) / sums.hard, slope / sums.student_soft,
                                       slope / sums.teacher_soft, static_cast<A>(hard)},
                            target);
    }
}

/// The second step: rescales the sums to the maxima over all ranks.
template <class A>
__global__ void rescale_sums(State<A> state, A inverse_temperature) {
    const std::int64_t r = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (r >= state.rows) return;
    Sums<A> sums = state.sums_of(r);
    sums.rescale(state.maxima_of(state.local_max, r), state.maxima_of(state.global_max, r),
                 inverse_temperature);
    state.store(sums, r);
}

}  // namespace

void distillation(Stream stream, LossSteps steps, const Array& student, const Array& teacher,
                  const Array& targets, const Array& weights, const Mixture& mixture, double scale,
                  std::int64_t first_token, const Array& global_max, const Array& local_max,
                  const Array& sums, const Array& losses) {
    by_type(student.dtype, [&]<class T>(T) {
        using A = Accumulate<T>;
        const std::int64_t rows = student.rows, columns = student.columns;
        const State<A> state{global_max.as<A>(), local_max.as<A>(), sums.as<A>(), rows};
        Mixture scaled = mixture;
        scaled.hard *= scale;
        scaled.soft *= scale;
        if (!steps.begin() && !steps.end())
            return launch(rescale_sums<A>, divide_up(rows, 128), 128, 0, stream, state,
                          static_cast<A>(1 / mixture.temperature));
        by_vector_size<T>(
            [&]<int N>() {
                launch(distillation_rows<T, N>, rows, row_threads(columns / N), kBlockReduceBytes<A>, stream,
                       student.as<T>(), teacher.as<T>(), Targets(targets, weights, first_token), columns,
                       scaled, state, losses.as<double>(), steps.begin(), steps.end());
            },
            columns, student.as<T>(), teacher.as<T>());
    });
}

}  // namespace maestro::kernels
