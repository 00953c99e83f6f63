#include "ops/columns.hpp"

#include "ops/dispatch.hpp"

namespace maestro::ops {

namespace {

std::int64_t rows_of(const Block& block) {
    return block.rows ? static_cast<std::int64_t>(block.rows->size()) : block.tensor.dim(0);
}

std::int64_t row_at(const Block& block, std::int64_t r) {
    return block.rows ? (*block.rows)[static_cast<std::size_t>(r)] : r;
}

void check(const Block& block, std::int64_t count) {
    MAESTRO_CHECK(block.column >= 0 && block.column + count <= block.tensor.columns(),
                  "columns {} to {} of {}", block.column, block.column + count, block.tensor.describe());
    for (std::int64_t r = 0; block.rows && r < rows_of(block); ++r)
        MAESTRO_CHECK(row_at(block, r) >= 0 && row_at(block, r) < block.tensor.dim(0), "row {} of {}",
                      row_at(block, r), block.tensor.describe());
}

}  // namespace

void copy_columns(backend::Backend& b, const Block& source, const Block& target, std::int64_t count,
                  bool accumulate) {
    const std::int64_t rows = rows_of(source);
    MAESTRO_CHECK(rows == rows_of(target), "{} rows of {} to {} of {}", rows, source.tensor.describe(),
                  rows_of(target), target.tensor.describe());
    check(source, count);
    check(target, count);
    const auto bytes = static_cast<double>(rows * count) *
                       static_cast<double>(size_of(source.tensor.dtype) + size_of(target.tensor.dtype));
    b.launch({accumulate ? static_cast<double>(rows * count) : 0, bytes}, [&] {
        by_type(source.tensor.dtype, [&]<class T>(T) {
            by_type(target.tensor.dtype, [&]<class O>(O) {
                using A = Accumulate<O>;
                parallel_for(rows, count, [&](std::int64_t r) {
                    const T* from =
                        source.tensor.as<T>() + row_at(source, r) * source.tensor.columns() + source.column;
                    O* to =
                        target.tensor.as<O>() + row_at(target, r) * target.tensor.columns() + target.column;
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
    });
}

}  // namespace maestro::ops
