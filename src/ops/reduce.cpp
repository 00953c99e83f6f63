#include "ops/reduce.hpp"

#include <algorithm>
#include <vector>

#include "kernels/reduce.hpp"
#include "ops/dispatch.hpp"

namespace maestro::ops {

namespace {

constexpr std::int64_t kBlock = 1 << 10;  ///< elements of one task of a thread

/// Returns the larger value, or NaN if one of them is NaN.
template <class A>
A larger(A x, A y) {
    return y > x || y != y ? y : x;
}

template <class T>
void reduce_block(std::span<const T* const> parts, Reduction op, std::int64_t begin, std::int64_t end,
                  T* to) {
    using A = Accumulate<T>;
    A values[kBlock];
    const std::int64_t size = end - begin;
    const T* first = parts[0] + begin;
    for (std::int64_t i = 0; i < size; ++i) values[i] = static_cast<A>(first[i]);
    for (const T* const part : parts.subspan(1)) {
        const T* next = part + begin;
        if (op == Reduction::sum)
            for (std::int64_t i = 0; i < size; ++i) values[i] += static_cast<A>(next[i]);
        else
            for (std::int64_t i = 0; i < size; ++i) values[i] = larger(values[i], static_cast<A>(next[i]));
    }
    for (std::int64_t i = 0; i < size; ++i) to[begin + i] = static_cast<T>(values[i]);
}

}  // namespace

void reduce(backend::Backend& b, std::span<const Tensor> parts, Reduction op, const Tensor& result) {
    MAESTRO_CHECK(!parts.empty(), "a reduction without parts");
    for (const Tensor& part : parts)
        MAESTRO_CHECK(part.dtype == result.dtype && part.size() == result.size(), "a part {} of a result {}",
                      part.describe(), result.describe());
    const auto count = static_cast<double>(parts.size());
    const double flops = (count - 1) * static_cast<double>(result.size()),
                 bytes = (count + 1) * static_cast<double>(result.bytes());
    b.launch(
        {flops, bytes},
        [&] {
            by_type(result.dtype, [&]<class T>(T) {
                std::vector<const T*> from;
                for (const Tensor& part : parts) from.push_back(part.as<T>());
                T* to = result.as<T>();
                const std::int64_t size = result.size();
                parallel_for((size + kBlock - 1) / kBlock, kBlock * static_cast<std::int64_t>(parts.size()),
                             [&](std::int64_t i) {
                                 reduce_block<T>(from, op, i * kBlock, std::min(size, (i + 1) * kBlock), to);
                             });
            });
        },
        [&](Stream stream) {
            MAESTRO_CHECK(parts.size() <= kernels::kMaxParts, "{} parts; a GPU takes at most {}",
                          parts.size(), kernels::kMaxParts);
            std::vector<const void*> from;
            for (const Tensor& part : parts) from.push_back(part.data);
            kernels::reduce(stream, from, op == Reduction::sum, result);
        });
}

}  // namespace maestro::ops
