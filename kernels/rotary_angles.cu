// fill_rotary() of kernels/rotary.hpp.
#include "kernels/device/angle.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/vector_access.cuh"
#include "kernels/rotary.hpp"

namespace maestro::kernels {

namespace {

/// Rows per thread. They share the frequency.
constexpr int kRows = 8;

/// Not an array: its elements would be copied to local memory, to be indexed there.
struct AxisPositions {
    const std::int32_t *first = nullptr, *second = nullptr, *third = nullptr;
    __device__ const std::int32_t* of(int axis) const {
        return axis == 0 ? first : axis == 1 ? second : third;
    }
};
static_assert(RotaryPairs::kAxes == 3);

template <class A>
__global__ void __launch_bounds__(128) compute_angles(AxisPositions positions, RotaryPairs pairs, A* cos,
                                                      A* sin, std::int64_t rows, std::int64_t columns) {
    const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const std::int64_t begin = item / columns * kRows, column = item % columns;
    if (begin >= rows) return;
    const std::int64_t end = begin + kRows < rows ? begin + kRows : rows;
    const double frequency = pairs.frequency[column];
    const std::int32_t* const of_axis = positions.of(pairs.axis[column]);
    for (std::int64_t row = begin; row < end; ++row) {
        double cosine, sine;
        cos_sin(of_axis[row] * frequency, cosine, sine);
        cos[row * columns + column] = static_cast<A>(cosine);
        sin[row * columns + column] = static_cast<A>(sine);
    }
}

}  // namespace

void fill_rotary(Stream stream, std::span<const Array> positions, const RotaryPairs& pairs, const Array& cos,
                 const Array& sin) {
    AxisPositions of_axes{};
    const std::int32_t** const each[] = {&of_axes.first, &of_axes.second, &of_axes.third};
    for (std::size_t axis = 0; axis < positions.size(); ++axis)
        *each[axis] = positions[axis].as<std::int32_t>();
    const auto start = [&]<class A>(A) {
        launch(compute_angles<A>, divide_up(divide_up(cos.rows, kRows) * cos.columns, 128), 128, 0, stream,
               of_axes, pairs, cos.as<A>(), sin.as<A>(), cos.rows, cos.columns);
    };
    if (cos.dtype == DType::f64)
        start(double{});
    else
        start(float{});
}

}  // namespace maestro::kernels
