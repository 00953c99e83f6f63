#include "ops/adamw.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/device_scratch.hpp"
#include "ops/dispatch.hpp"

namespace maestro::ops {

namespace {
/// Elements whose squares are summed by one thread. Fixed, so that the order of sums does not depend on the
/// threads.
constexpr std::int64_t kBlock = 1 << 13;

template <class T>
kernels::AdamWFactorsOf<T> factors_of(const AdamW& s) {
    const double correction1 = 1 - std::pow(s.beta1, static_cast<double>(s.step));
    const double correction2 = 1 - std::pow(s.beta2, static_cast<double>(s.step));
    return {.beta1 = static_cast<T>(s.beta1),
            .one_minus_beta1 = static_cast<T>(1 - s.beta1),
            .beta2 = static_cast<T>(s.beta2),
            .one_minus_beta2 = static_cast<T>(1 - s.beta2),
            .step_size = static_cast<T>(s.learning_rate / correction1),
            .root_correction = static_cast<T>(1 / std::sqrt(correction2)),
            .eps = static_cast<T>(s.eps),
            .scale = static_cast<T>(s.gradient_scale),
            .decay = static_cast<T>(1 - s.learning_rate * s.weight_decay)};
}

/// adamw() on the CPU.
template <class T>
void update(const Tensor& weights, const Tensor& gradient, const Tensor& first, const Tensor& second,
            const Tensor& chunks, const kernels::AdamWFactorsOf<T>& f) {
    T* w = weights.as<T>();
    const T* g = gradient.as<T>();
    T* m = first.as<T>();
    T* v = second.as<T>();
    const auto* const all = static_cast<const kernels::UpdateChunk*>(chunks.data);
    parallel_for(
        chunks.rows(), chunks.rows() > 0 ? weights.size() / chunks.rows() * 8 : 0, [&](std::int64_t c) {
            const kernels::UpdateChunk chunk = all[c];
            const std::int64_t end = chunk.begin + chunk.size;
            const T keep = chunk.decays != 0 ? f.decay : T(1);
#pragma omp simd
            for (std::int64_t i = chunk.begin; i < end; ++i) {
                const T x = g[i] * f.scale;
                m[i] = f.beta1 * m[i] + f.one_minus_beta1 * x;
                v[i] = f.beta2 * v[i] + f.one_minus_beta2 * x * x;
                w[i] = w[i] * keep - f.step_size * m[i] / (std::sqrt(v[i]) * f.root_correction + f.eps);
            }
        });
}

}  // namespace

std::vector<kernels::UpdateChunk> update_chunks(std::span<const UpdateRange> elements) {
    constexpr std::int64_t kChunk = 1 << 14;
    std::vector<kernels::UpdateChunk> chunks;
    for (const auto& [range, decays] : elements)
        for (std::int64_t begin = range.begin; begin < range.end; begin += kChunk)
            chunks.push_back({begin, static_cast<std::int32_t>(std::min(kChunk, range.end - begin)), decays});
    return chunks;
}

void adamw(backend::Backend& b, const Tensor& weights, const Tensor& gradient, const Tensor& first,
           const Tensor& second, const Tensor& chunks, const AdamW& s) {
    const std::int64_t size = weights.size();
    MAESTRO_CHECK(gradient.size() == size && first.size() == size && second.size() == size,
                  "{} weights, {} gradients, or moments of another size", size, gradient.size());
    MAESTRO_CHECK(weights.dtype == DType::f32 || b.shares_memory(), "{} on a device", weights.describe());
    b.launch(
        {15.0 * static_cast<double>(size), 7.0 * static_cast<double>(weights.bytes())},
        [&] {
            if (weights.dtype == DType::f64)
                update(weights, gradient, first, second, chunks, factors_of<double>(s));
            else
                update(weights, gradient, first, second, chunks, factors_of<float>(s));
        },
        [&](Stream stream) {
            kernels::adamw(stream, weights, gradient, first, second, chunks, factors_of<float>(s));
        });
}

std::size_t squares_scratch(std::int64_t elements) {
    backend::Arena measured;
    measured.allocate(DType::f64, {kernels::square_chunks(elements)});
    return measured.peak();
}

void add_squares(backend::Backend& b, const Tensor& t, const Tensor& sum, backend::Arena& scratch) {
    const backend::ArenaScope scope(scratch);
    const Tensor partial = device_scratch(b, scratch, DType::f64, {kernels::square_chunks(t.size())});
    b.launch(
        {2.0 * static_cast<double>(t.size()), static_cast<double>(t.bytes())},
        [&] {
            const std::int64_t blocks = (t.size() + kBlock - 1) / kBlock;
            std::vector<double> sums(static_cast<std::size_t>(blocks), 0.0);
            by_type(t.dtype, [&]<class T>(T) {
                const T* values = t.as<T>();
                parallel_for(blocks, kBlock * 2, [&](std::int64_t block) {
                    const std::int64_t end = std::min(t.size(), (block + 1) * kBlock);
                    double part = 0;
#pragma omp simd reduction(+ : part)
                    for (std::int64_t i = block * kBlock; i < end; ++i)
                        part += static_cast<double>(static_cast<Accumulate<T>>(values[i])) *
                                static_cast<double>(static_cast<Accumulate<T>>(values[i]));
                    sums[block] = part;
                });
            });
            // In double: squares of gradients span many orders of magnitude, and the clipping of all ranks
            // depends on their sum.
            double total = 0;
            for (const double part : sums) total += part;
            sum.as<double>()[0] += total;
        },
        [&](Stream stream) { kernels::add_squares(stream, t, sum, partial); });
}

}  // namespace maestro::ops
