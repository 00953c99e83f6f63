#include "ops/embedding.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/embedding.hpp"
#include "kernels/rows.hpp"
#include "ops/device_scratch.hpp"
#include "ops/dispatch.hpp"

namespace maestro::ops {

void embedding(backend::Backend& b, const Tensor& ids, const Tensor& table, const Tensor& y) {
    MAESTRO_CHECK(y.rows() == ids.size(), "{} ids for {}", ids.size(), y.describe());
    MAESTRO_CHECK(table.dtype == y.dtype && table.columns() == y.columns(), "table {}, y {}",
                  table.describe(), y.describe());
    b.launch(
        {0, 2.0 * static_cast<double>(y.bytes())},
        [&] {
            const std::size_t row = static_cast<std::size_t>(y.columns()) * size_of(y.dtype);
            const std::int32_t* id = ids.as<std::int32_t>();
            for (std::int64_t t = 0; t < ids.size(); ++t) {
                auto* target = static_cast<std::byte*>(y.data) + static_cast<std::size_t>(t) * row;
                MAESTRO_CHECK(id[t] < table.dim(0), "token {} of a vocabulary of {}", id[t], table.dim(0));
                if (id[t] < 0)
                    std::memset(target, 0, row);
                else
                    std::memcpy(
                        target,
                        static_cast<const std::byte*>(table.data) + static_cast<std::size_t>(id[t]) * row,
                        row);
            }
        },
        [&](Stream stream) { kernels::gather_rows(stream, table, ids, y); });
}

void embedding_backward(backend::Backend& b, const Tensor& ids, const Tensor& dy, const Tensor& dtable,
                        backend::Arena& scratch) {
    MAESTRO_CHECK(dy.rows() == ids.size(), "{} ids for {}", ids.size(), dy.describe());
    const backend::ArenaScope scope(scratch);
    const Tensor sorting =
        device_scratch(b, scratch, DType::i32, {kernels::embedding_scratch(ids.size(), dtable.rows())});
    b.launch(
        {static_cast<double>(dy.size()), 2.0 * static_cast<double>(dy.bytes())},
        [&] {
            by_type(dy.dtype, [&]<class T>(T) {
                using A = Accumulate<T>;
                const std::int64_t columns = dy.columns();
                const T* in = dy.as<T>();
                A* out = dtable.as<A>();
                const std::int32_t* id = ids.as<std::int32_t>();
                // On one thread, because a token that occurs twice adds to the same row twice, and the order
                // of these sums must not depend on the number of threads.
                for (std::int64_t t = 0; t < ids.size(); ++t) {
                    if (id[t] < 0) continue;
                    const T* row = in + t * columns;
                    A* target = out + id[t] * columns;
                    for (std::int64_t c = 0; c < columns; ++c) target[c] += static_cast<A>(row[c]);
                }
            });
        },
        [&](Stream stream) { kernels::embedding_backward(stream, ids, dy, dtable, sorting); });
}

}  // namespace maestro::ops
