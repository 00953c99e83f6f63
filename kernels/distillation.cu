#include "kernels/distillation.hpp"

#include "kernels/device/arithmetic_type.cuh"
#include "kernels/device/block.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/logits.cuh"
#include "kernels/device/number.cuh"

namespace maestro::kernels {

namespace {

template <class A>
struct Tops {
    A student = kLowest<A>, teacher = kLowest<A>;
};

/// Of a row, in one reading, relative to the largest logits so far.
template <class A>
struct Sums {
    A hard = 0;              ///< of the student's exponentials
    A soft = 0, wanted = 0;  ///< of the student's and the teacher's, softened
    A cross = 0;             ///< of wanted exponentials times what their logarithms are above the student's

    /// From some largest logits to others. The logarithms shift by as much, which is no number where there
    /// are none yet.
    __device__ __forceinline__ void shift(const Tops<A>& from, const Tops<A>& to, A inverse) {
        const A student = inverse * (from.student - to.student),
                teacher = inverse * (from.teacher - to.teacher);
        const A shrink = exp(teacher);
        hard *= exp(from.student - to.student);
        soft *= exp(student);
        cross = wanted == 0 ? A(0) : shrink * (cross + wanted * (teacher - student));
        wanted *= shrink;
    }
};

template <int N>
inline constexpr int kAhead = N == 1 ? 4 : 2;  ///< packs of each of the two rows

/// `inverse` of the temperature.
template <class A, int N>
__device__ __forceinline__ Sums<A> sums_of(const A* student, const A* teacher, std::int64_t columns,
                                           A inverse, Tops<A>& tops) {
    constexpr int K = kAhead<N>;
    const std::int64_t stride = blockDim.x * N;
    Sums<A> sums;
    for (std::int64_t c = threadIdx.x * N; c < columns; c += K * stride) {
        A q[K][N], p[K][N];
        read(student, c, stride, columns, q);
        read(teacher, c, stride, columns, p);
        const Tops<A> before = tops;
        tops = {largest(q, tops.student), largest(p, tops.teacher)};
        sums.shift(before, tops, inverse);
#pragma unroll
        for (int k = 0; k < K; ++k) {
            if (c + k * stride >= columns) break;
#pragma unroll
            for (int i = 0; i < N; ++i) {
                const A log_q = inverse * (q[k][i] - tops.student),
                        log_p = inverse * (p[k][i] - tops.teacher);
                const A wanted = exp(log_p);
                sums.hard += exp(q[k][i] - tops.student);
                sums.soft += exp(log_q);
                sums.wanted += wanted;
                sums.cross += wanted * (log_p - log_q);
            }
        }
    }
    A* const room = shared_memory<A>();
    const Tops<A> own = tops;
    tops = {over_block(own.student, Max{}, kLowest<A>, room),
            over_block(own.teacher, Max{}, kLowest<A>, room)};
    sums.shift(own, tops, inverse);
    return {over_block(sums.hard, Sum{}, A(0), room), over_block(sums.soft, Sum{}, A(0), room),
            over_block(sums.wanted, Sum{}, A(0), room), over_block(sums.cross, Sum{}, A(0), room)};
}

/// What the exponentials of a row are multiplied by.
template <class A>
struct Factors {
    A hard, soft, wanted;
    A target;  ///< what the target's column gets less
};

/// Backwards, because what sums_of() read last is still in the cache.
template <class A, int N>
__device__ __forceinline__ void differentiate(A* student, const A* teacher, std::int64_t columns, A inverse,
                                              const Tops<A>& tops, const Factors<A>& factors,
                                              std::int64_t target) {
    constexpr int K = kAhead<N>;
    const std::int64_t stride = blockDim.x * N, step = K * stride;
    for (std::int64_t c = last_column(threadIdx.x * N, step, columns); c >= 0; c -= step) {
        A q[K][N], p[K][N];
        read(student, c, stride, columns, q);
        read(teacher, c, stride, columns, p);
#pragma unroll
        for (int k = 0; k < K; ++k) {
            const std::int64_t at = c + k * stride;
            if (at >= columns) break;
#pragma unroll
            for (int i = 0; i < N; ++i) {
                A hard = factors.hard * exp(q[k][i] - tops.student);
                if (at + i == target) hard -= factors.target;
                q[k][i] = hard + (factors.soft * exp(inverse * (q[k][i] - tops.student)) -
                                  factors.wanted * exp(inverse * (p[k][i] - tops.teacher)));
            }
            store<A, N>(q[k], student + at);
        }
    }
}

/// What steps keep for later ones.
template <class A>
struct Kept {
    A *tops, *own_tops, *sums;
    std::int64_t rows;

    __device__ Tops<A> tops_of(const A* from, std::int64_t r) const { return {from[r], from[rows + r]}; }
    __device__ Sums<A> sums_of(std::int64_t r) const {
        return {sums[r], sums[rows + r], sums[2 * rows + r], sums[3 * rows + r]};
    }
    __device__ A& logit(std::int64_t r) const { return sums[4 * rows + r]; }  ///< of the target
    __device__ void keep(const Tops<A>& value, A* to, std::int64_t r) const {
        to[r] = value.student;
        to[rows + r] = value.teacher;
    }
    __device__ void keep(const Sums<A>& value, std::int64_t r) const {
        sums[r] = value.hard;
        sums[rows + r] = value.soft;
        sums[2 * rows + r] = value.wanted;
        sums[3 * rows + r] = value.cross;
    }
};

/// The losses' shares and the temperature.
struct Shares {
    double hard, soft, temperature;
};

/// The first step, the last one, or all of them: a block takes a row. A block on a multiprocessor is enough,
/// because there are few rows at a time; for more of them the compiler would spill.
template <class A, int N>
__global__ void __launch_bounds__(512, 1)
    take_rows(A* students, const A* teachers, Wanted wanted, std::int64_t columns, Shares shares,
              Kept<A> kept, double* losses, bool begins, bool ends) {
    const std::int64_t r = blockIdx.x;
    A* const student = students + r * columns;
    const A* const teacher = teachers + r * columns;
    const A inverse = static_cast<A>(1 / shares.temperature);
    const bool counts = wanted.counts(r);
    const std::int64_t target = wanted.column(r);
    Tops<A> tops{0, 0};
    Sums<A> sums;
    A logit = 0;
    if (!begins) {
        tops = kept.tops_of(kept.tops, r);
        sums = kept.sums_of(r);
        logit = kept.logit(r);
    } else if (counts) {
        if (target >= 0 && target < columns) logit = student[target];
        tops = {};
        sums = sums_of<A, N>(student, teacher, columns, inverse, tops);
        __syncthreads();  // all have read the target's logit, and one overwrites it
    }
    if (!ends) {
        if (threadIdx.x != 0) return;
        kept.keep(tops, kept.tops, r);
        kept.keep(tops, kept.own_tops, r);
        kept.keep(sums, r);
        kept.logit(r) = logit;
    } else if (!counts) {
        if (threadIdx.x == 0) losses[r] = losses[kept.rows + r] = 0;
        clear<A, N>(student, columns);
    } else {
        const auto weight = static_cast<double>(wanted.weights[r]);
        const double hard = shares.hard * weight, soft = shares.soft * weight;
        if (threadIdx.x == 0) {
            const auto all = static_cast<double>(sums.wanted);
            const double divergence =
                static_cast<double>(sums.cross) / all - log(all) + log(static_cast<double>(sums.soft));
            losses[r] = hard * (static_cast<double>(tops.student) + log(static_cast<double>(sums.hard)) -
                                static_cast<double>(logit));
            losses[kept.rows + r] = soft * shares.temperature * shares.temperature * divergence;
        }
        const A slope = static_cast<A>(soft * shares.temperature);
        differentiate<A, N>(student, teacher, columns, inverse, tops,
                            Factors<A>{static_cast<A>(hard) / sums.hard, slope / sums.soft,
                                       slope / sums.wanted, static_cast<A>(hard)},
                            target);
    }
}

/// The second step: sums as they would be with the largest logits of all ranks.
template <class A>
__global__ void join_parts(Kept<A> kept, A inverse) {
    const std::int64_t r = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (r >= kept.rows) return;
    Sums<A> sums = kept.sums_of(r);
    sums.shift(kept.tops_of(kept.own_tops, r), kept.tops_of(kept.tops, r), inverse);
    kept.keep(sums, r);
}

}  // namespace

void distillation(Stream stream, LossSteps steps, const Array& student, const Array& teacher,
                  const Array& targets, const Array& weights, double alpha, double temperature, double scale,
                  std::int64_t first_token, const Array& tops, const Array& own_tops, const Array& sums,
                  const Array& losses) {
    by_arithmetic_type(student.dtype, [&]<class A>(A) {
        const std::int64_t rows = student.rows, columns = student.columns;
        const Kept<A> kept{tops.as<A>(), own_tops.as<A>(), sums.as<A>(), rows};
        if (!steps.begin() && !steps.end())
            return launch(join_parts<A>, divide_up(rows, 128), 128, 0, stream, kept,
                          static_cast<A>(1 / temperature));
        by_pack<A>(
            [&]<int N>() {
                launch(take_rows<A, N>, rows, row_threads(columns / N), kBlockRoom<A>, stream,
                       student.as<A>(), teacher.as<A>(), Wanted(targets, weights, first_token), columns,
                       Shares{scale * (1 - alpha), scale * alpha, temperature}, kept, losses.as<double>(),
                       steps.begin(), steps.end());
            },
            columns, student.as<A>(), teacher.as<A>());
    });
}

}  // namespace maestro::kernels
