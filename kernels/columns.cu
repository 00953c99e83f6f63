#include "kernels/columns.hpp"

#include "kernels/device/lanes.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/vector_access.cuh"

namespace maestro::kernels {

namespace {

/// The columns of one side of the copy.
template <class T>
struct Side {
    T* first;  ///< row 0, first column
    std::int64_t stride;
    const std::int32_t* row_indices;

    explicit Side(const Columns& from)
        : first(from.tensor.as<T>() + from.column),
          stride(from.tensor.columns),
          row_indices(from.rows.as<std::int32_t>()) {}
    __device__ T* row(std::int64_t r) const { return first + (row_indices ? row_indices[r] : r) * stride; }
    /// Whether every row can be accessed 16 bytes at a time.
    bool aligned() const {
        return reinterpret_cast<std::uintptr_t>(first) % 16 == 0 && stride % kVectorSize<T> == 0;
    }
};

template <class T, class O, int N>
__global__ void __launch_bounds__(kLaneThreads) copy(Side<T> source, Side<O> target, std::int64_t rows,
                                                     std::int64_t count, bool accumulate, Lanes lanes) {
    using A = Accumulate<O>;
    const std::int64_t row = lanes.row();
    if (row >= rows) return;
    const T* const from = source.row(row);
    O* const to = target.row(row);
    for (std::int64_t c = lanes.lane() * N; c < count; c += lanes.count() * N) {
        Accumulate<T> value[N];
        A found[N];
        load<T, N>(from + c, value);
        if (accumulate) load<O, N>(to + c, found);
#pragma unroll
        for (int i = 0; i < N; ++i)
            found[i] = accumulate ? found[i] + static_cast<A>(value[i]) : static_cast<A>(value[i]);
        store<O, N>(found, to + c);
    }
}

}  // namespace

void copy_columns(Stream stream, const Columns& source, const Columns& target, std::int64_t rows,
                  std::int64_t count, bool accumulate) {
    if (rows * count == 0) return;
    by_type(source.tensor.dtype, [&]<class T>(T) {
        by_type(target.tensor.dtype, [&]<class O>(O) {
            const Side<T> from(source);
            const Side<O> to(target);
            const auto start = [&]<int N>() {
                const Lanes lanes = lanes_for(divide_up(count, N));
                launch(copy<T, O, N>, lanes.blocks(rows), kLaneThreads, 0, stream, from, to, rows, count,
                       accumulate, lanes);
            };
            // Vectors of the wider type: 16 bytes of it, and as many elements of the other.
            constexpr int kWidest = kVectorSize < T >> kVectorSize<O> ? kVectorSize<T> : kVectorSize<O>;
            if (from.aligned() && to.aligned() && count % kWidest == 0)
                start.template operator()<kWidest>();
            else
                start.template operator()<1>();
        });
    });
}

}  // namespace maestro::kernels
