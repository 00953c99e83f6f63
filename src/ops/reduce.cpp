#include "ops/reduce.hpp"

#include <algorithm>
#include <vector>

#include "ops/dispatch.hpp"

namespace maestro::ops {

namespace {
constexpr std::int64_t kBlock = 1 << 12;  ///< elements a thread takes at a time
}

void reduce(backend::Backend& b, std::span<const Tensor> parts, Reduction how, const Tensor& result) {
    MAESTRO_CHECK(!parts.empty(), "a reduction of nothing");
    for (const Tensor& part : parts)
        MAESTRO_CHECK(part.dtype == result.dtype && part.size() == result.size(), "{} and {}",
                      part.describe(), result.describe());
    const auto count = static_cast<double>(parts.size());
    b.launch(
        {(count - 1) * static_cast<double>(result.size()), (count + 1) * static_cast<double>(result.bytes())},
        [&] {
            by_type(result.dtype, [&]<class T>(T) {
                using A = Accumulate<T>;
                std::vector<const T*> from;
                for (const Tensor& part : parts) from.push_back(part.as<T>());
                T* to = result.as<T>();
                const auto fold = [&](std::int64_t i, auto&& both) {
                    A value = static_cast<A>(from[0][i]);
                    for (std::size_t p = 1; p < from.size(); ++p)
                        value = both(value, static_cast<A>(from[p][i]));
                    to[i] = static_cast<T>(value);
                };
                const std::int64_t size = result.size();
                parallel_for((size + kBlock - 1) / kBlock, kBlock * static_cast<std::int64_t>(parts.size()),
                             [&](std::int64_t block) {
                                 const std::int64_t end = std::min(size, (block + 1) * kBlock);
                                 for (std::int64_t i = block * kBlock; i < end; ++i)
                                     if (how == Reduction::sum)
                                         fold(i, [](A x, A y) { return x + y; });
                                     else
                                         fold(i, [](A x, A y) { return std::max(x, y); });
                             });
            });
        });
}

}  // namespace maestro::ops
