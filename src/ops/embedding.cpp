#include "ops/embedding.hpp"

#include <algorithm>
#include <cstring>

#include "ops/dispatch.hpp"

namespace maestro::ops {

void embedding(backend::Backend& b, std::span<const std::int32_t> ids, const Tensor& table, const Tensor& y) {
    MAESTRO_CHECK(static_cast<std::size_t>(y.rows()) == ids.size(), "{} ids for {}", ids.size(),
                  y.describe());
    MAESTRO_CHECK(table.dtype == y.dtype && table.columns() == y.columns(), "table {}, y {}",
                  table.describe(), y.describe());
    b.launch({0, 2.0 * static_cast<double>(y.bytes())}, [&] {
        const std::size_t row = static_cast<std::size_t>(y.columns()) * size_of(y.dtype);
        for (std::size_t t = 0; t < ids.size(); ++t) {
            auto* target = static_cast<std::byte*>(y.data) + t * row;
            MAESTRO_CHECK(ids[t] < table.dim(0), "token {} of a vocabulary of {}", ids[t], table.dim(0));
            if (ids[t] < 0)
                std::memset(target, 0, row);
            else
                std::memcpy(
                    target,
                    static_cast<const std::byte*>(table.data) + static_cast<std::size_t>(ids[t]) * row, row);
        }
    });
}

void embedding_backward(backend::Backend& b, std::span<const std::int32_t> ids, const Tensor& dy,
                        const Tensor& dtable) {
    MAESTRO_CHECK(static_cast<std::size_t>(dy.rows()) == ids.size(), "{} ids for {}", ids.size(),
                  dy.describe());
    b.launch({static_cast<double>(dy.size()), 2.0 * static_cast<double>(dy.bytes())}, [&] {
        by_type(dy.dtype, [&]<class T>(T) {
            using A = Accumulate<T>;
            const std::int64_t columns = dy.columns();
            const T* in = dy.as<T>();
            A* out = dtable.as<A>();
            // On one thread: a token that comes twice adds to one row twice, in row order.
            for (std::size_t t = 0; t < ids.size(); ++t) {
                if (ids[t] < 0) continue;
                const T* row = in + static_cast<std::int64_t>(t) * columns;
                A* target = out + ids[t] * columns;
                for (std::int64_t c = 0; c < columns; ++c) target[c] += static_cast<A>(row[c]);
            }
        });
    });
}

}  // namespace maestro::ops
