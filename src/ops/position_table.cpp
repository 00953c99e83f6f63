#include "ops/position_table.hpp"

#include <algorithm>

#include "kernels/position_table.hpp"
#include "ops/device_scratch.hpp"
#include "ops/dispatch.hpp"

namespace maestro::ops {

namespace {

constexpr std::int64_t kNeighbours = 4;

/// Where a patch stands along an axis: between two rows (or columns) of the table, and the weights of these.
struct Between {
    std::int64_t low, high;
    double low_weight, high_weight;
};

/// In integers, so that a patch that stands on a row of the table has exactly that row.
Between between(std::int64_t position, std::int64_t patches, std::int64_t side) {
    const std::int64_t steps = std::max<std::int64_t>(patches - 1, 1), scaled = position * (side - 1),
                       low = scaled / steps, rest = scaled % steps;
    const auto size = static_cast<double>(steps);
    return {low, std::min(low + 1, side - 1), static_cast<double>(steps - rest) / size,
            static_cast<double>(rest) / size};
}

void check(const Tensor& index, const Tensor& weight, const Tensor& rows, const Tensor& table) {
    MAESTRO_CHECK(index.dtype == DType::i32 && index.size() == kNeighbours * rows.rows() &&
                      weight.dtype == DType::f64 && weight.size() == index.size(),
                  "index {}, weight {} for {}", index.describe(), weight.describe(), rows.describe());
    MAESTRO_CHECK(table.columns() == rows.columns(), "table {} for {}", table.describe(), rows.describe());
}

}  // namespace

InterpolatedRows interpolate_rows(std::span<const GridPosition> patches, std::int64_t side) {
    InterpolatedRows found;
    found.index.reserve(patches.size() * kNeighbours);
    found.weight.reserve(patches.size() * kNeighbours);
    const auto add = [&](std::int64_t row, double weight) {
        found.index.push_back(static_cast<std::int32_t>(row));
        found.weight.push_back(weight);
    };
    for (const GridPosition& p : patches) {
        MAESTRO_CHECK(p.y >= 0 && p.y < p.height && p.x >= 0 && p.x < p.width,
                      "patch ({}, {}) of a picture of {} x {}", p.y, p.x, p.height, p.width);
        const Between y = between(p.y, p.height, side), x = between(p.x, p.width, side);
        add(y.low * side + x.low, y.low_weight * x.low_weight);
        add(y.low * side + x.high, y.low_weight * x.high_weight);
        add(y.high * side + x.low, y.high_weight * x.low_weight);
        add(y.high * side + x.high, y.high_weight * x.high_weight);
    }
    return found;
}

void position_embedding(backend::Backend& b, const Tensor& index, const Tensor& weight, const Tensor& table,
                        const Tensor& x) {
    check(index, weight, x, table);
    MAESTRO_CHECK(table.dtype == x.dtype, "table {}, x {}", table.describe(), x.describe());
    const double bytes = static_cast<double>(x.bytes());
    b.launch(
        {9.0 * static_cast<double>(x.size()),
         2.0 * bytes + std::min(4.0 * bytes, static_cast<double>(table.bytes()))},
        [&] {
            by_type(x.dtype, [&]<class T>(T) {
                using A = Accumulate<T>;
                const std::int64_t columns = x.columns();
                const std::int32_t* rows = index.as<std::int32_t>();
                const double* weights = weight.as<double>();
                for (std::int64_t i = 0; i < index.size(); ++i)
                    MAESTRO_CHECK(rows[i] >= 0 && rows[i] < table.dim(0), "row {} of {}", rows[i],
                                  table.describe());
                T* out = x.as<T>();
                parallel_for(x.rows(), columns * 8, [&](std::int64_t t) {
                    const T* from[kNeighbours];
                    A factor[kNeighbours];
                    for (std::int64_t k = 0; k < kNeighbours; ++k) {
                        from[k] = table.as<T>() + rows[t * kNeighbours + k] * columns;
                        factor[k] = static_cast<A>(weights[t * kNeighbours + k]);
                    }
                    T* target = out + t * columns;
                    MAESTRO_INDEPENDENT
                    for (std::int64_t c = 0; c < columns; ++c) {
                        A sum = factor[0] * static_cast<A>(from[0][c]);
                        sum += factor[1] * static_cast<A>(from[1][c]);
                        sum += factor[2] * static_cast<A>(from[2][c]);
                        sum += factor[3] * static_cast<A>(from[3][c]);
                        target[c] = static_cast<T>(static_cast<A>(target[c]) + sum);
                    }
                });
            });
        },
        [&](Stream stream) { kernels::position_embedding(stream, index, weight, table, x); });
}

void position_embedding_backward(backend::Backend& b, const Tensor& index, const Tensor& weight,
                                 const Tensor& dy, const Tensor& dtable, backend::Arena& scratch) {
    check(index, weight, dy, dtable);
    MAESTRO_CHECK(dtable.dtype == accumulate_type(dy.dtype), "dy {}, dtable {}", dy.describe(),
                  dtable.describe());
    const backend::ArenaScope scope(scratch);
    const Tensor sorting = device_scratch(b, scratch, DType::i32,
                                          {kernels::position_embedding_scratch(index.size(), dtable.rows())});
    const double read = static_cast<double>(dy.bytes());
    b.launch(
        {8.0 * static_cast<double>(dy.size()), read + 2.0 * static_cast<double>(dtable.bytes())},
        [&] {
            by_type(dy.dtype, [&]<class T>(T) {
                using A = Accumulate<T>;
                const std::int64_t columns = dy.columns();
                const T* in = dy.as<T>();
                A* out = dtable.as<A>();
                const std::int32_t* rows = index.as<std::int32_t>();
                const double* weights = weight.as<double>();
                parallel_columns(columns, index.size(), [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t i = 0; i < index.size(); ++i) {
                        const T* gradient = in + i / kNeighbours * columns;
                        A* target = out + rows[i] * columns;
                        const A factor = static_cast<A>(weights[i]);
                        for (std::int64_t c = begin; c < end; ++c)
                            target[c] += factor * static_cast<A>(gradient[c]);
                    }
                });
            });
        },
        [&](Stream stream) {
            kernels::position_embedding_backward(stream, index, weight, dy, dtable, sorting);
        });
}

}  // namespace maestro::ops
