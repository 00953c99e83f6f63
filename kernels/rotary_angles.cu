// fill_rotary() of kernels/rotary.hpp.
#include "kernels/device/angle.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/vector_access.cuh"
#include "kernels/rotary.hpp"

namespace maestro::kernels {

namespace {

/// Rows per thread. They share the power of theta, which is expensive to compute.
constexpr int kRows = 8;

template <class A>
__global__ void __launch_bounds__(128)
    compute_angles(const std::int32_t* first, const std::int32_t* second, std::int64_t frequencies,
                   double theta, A* cos, A* sin, std::int64_t rows, std::int64_t columns) {
    const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const std::int64_t begin = item / columns * kRows, column = item % columns;
    if (begin >= rows) return;
    const std::int64_t end = begin + kRows < rows ? begin + kRows : rows;
    const double frequency =
        pow(theta, -static_cast<double>(column % frequencies) / static_cast<double>(frequencies));
    const std::int32_t* const positions = column < frequencies ? first : second;
    for (std::int64_t row = begin; row < end; ++row) {
        double cosine, sine;
        cos_sin(positions[row] * frequency, cosine, sine);
        cos[row * columns + column] = static_cast<A>(cosine);
        sin[row * columns + column] = static_cast<A>(sine);
    }
}

}  // namespace

void fill_rotary(Stream stream, const Array& first, const Array& second, std::int64_t frequencies,
                 double theta, const Array& cos, const Array& sin) {
    const auto start = [&]<class A>(A) {
        launch(compute_angles<A>, divide_up(divide_up(cos.rows, kRows) * cos.columns, 128), 128, 0, stream,
               first.as<std::int32_t>(), second.as<std::int32_t>(), frequencies, theta, cos.as<A>(),
               sin.as<A>(), cos.rows, cos.columns);
    };
    if (cos.dtype == DType::f64)
        start(double{});
    else
        start(float{});
}

}  // namespace maestro::kernels
