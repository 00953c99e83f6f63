#include "ops/columns.hpp"

#include "kernels/columns.hpp"
#include "ops/dispatch.hpp"

namespace maestro::ops {

namespace {

std::int64_t rows_of(const ColumnView& view) {
    return view.rows.rank > 0 ? view.rows.size() : view.tensor.dim(0);
}

void check(const ColumnView& view, std::int64_t count) {
    MAESTRO_CHECK(view.column >= 0 && view.column + count <= view.tensor.columns(), "columns {} to {} of {}",
                  view.column, view.column + count, view.tensor.describe());
}

/// Returns the row numbers of a view after checking them, or null for all rows in their order. Checked here
/// because no exception may leave the parallel loop.
const std::int32_t* checked_rows(const ColumnView& view) {
    if (view.rows.rank == 0) return nullptr;
    const std::int32_t* at = view.rows.as<std::int32_t>();
    for (std::int64_t r = 0; r < view.rows.size(); ++r)
        MAESTRO_CHECK(at[r] >= 0 && at[r] < view.tensor.dim(0), "row {} of {}", at[r],
                      view.tensor.describe());
    return at;
}

}  // namespace

void copy_columns(backend::Backend& b, const ColumnView& source, const ColumnView& target, std::int64_t count,
                  bool accumulate) {
    const std::int64_t rows = rows_of(source);
    MAESTRO_CHECK(rows == rows_of(target), "{} rows of {} cannot be copied to {} rows of {}", rows,
                  source.tensor.describe(), rows_of(target), target.tensor.describe());
    check(source, count);
    check(target, count);
    const auto bytes = static_cast<double>(rows * count) *
                       static_cast<double>(size_of(source.tensor.dtype) + size_of(target.tensor.dtype));
    b.launch(
        {accumulate ? static_cast<double>(rows * count) : 0, bytes},
        [&] {
            const std::int32_t *from_rows = checked_rows(source), *to_rows = checked_rows(target);
            by_type(source.tensor.dtype, [&]<class T>(T) {
                by_type(target.tensor.dtype, [&]<class O>(O) {
                    using A = Accumulate<O>;
                    parallel_for(rows, count, [&](std::int64_t r) {
                        const T* from = source.tensor.as<T>() +
                                        (from_rows ? from_rows[r] : r) * source.tensor.columns() +
                                        source.column;
                        O* to = target.tensor.as<O>() + (to_rows ? to_rows[r] : r) * target.tensor.columns() +
                                target.column;
                        if (accumulate)
                            for (std::int64_t c = 0; c < count; ++c)
                                to[c] = static_cast<O>(static_cast<A>(to[c]) +
                                                       static_cast<A>(static_cast<Accumulate<T>>(from[c])));
                        else
                            for (std::int64_t c = 0; c < count; ++c)
                                to[c] = static_cast<O>(static_cast<A>(static_cast<Accumulate<T>>(from[c])));
                    });
                });
            });
        },
        [&](Stream stream) {
            kernels::copy_columns(stream, {source.tensor, source.column, source.rows},
                                  {target.tensor, target.column, target.rows}, rows, count, accumulate);
        });
}

}  // namespace maestro::ops
