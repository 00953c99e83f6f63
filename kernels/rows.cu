#include "kernels/rows.hpp"

#include "kernels/device/lanes.cuh"
#include "kernels/device/launch.cuh"

namespace maestro::kernels {

namespace {

/// target[index[r]] = source[r]. Rows are copied as `units` units of the widest type that addresses and row
/// sizes are multiples of, whatever the element type is.
template <class Unit>
__global__ void __launch_bounds__(kLaneThreads)
    scatter(const Unit* __restrict__ source, const std::int32_t* index, Unit* __restrict__ target,
            std::int64_t rows, std::int64_t units, Lanes lanes) {
    const std::int64_t row = lanes.row();
    if (row >= rows) return;
    const Unit* const from = source + row * units;
    Unit* const to = target + index[row] * units;
#pragma unroll 4
    for (std::int64_t i = lanes.lane(); i < units; i += lanes.count()) to[i] = from[i];
}

/// target[r] = source[index[r]], or zeros.
template <class Unit>
__global__ void __launch_bounds__(kLaneThreads)
    gather(const Unit* __restrict__ source, const std::int32_t* index, Unit* __restrict__ target,
           std::int64_t rows, std::int64_t units, Lanes lanes) {
    const std::int64_t row = lanes.row();
    if (row >= rows) return;
    const std::int64_t source_row = index[row];
    Unit* const to = target + row * units;
    if (source_row < 0) {
        for (std::int64_t i = lanes.lane(); i < units; i += lanes.count()) to[i] = Unit{};
        return;
    }
    const Unit* const from = source + source_row * units;
#pragma unroll 4
    for (std::int64_t i = lanes.lane(); i < units; i += lanes.count()) to[i] = from[i];
}

/// Calls body(Unit{}) with the widest type whose size divides both addresses and the bytes of a row.
template <class Body>
void by_unit(const void* a, const void* b, std::int64_t bytes, Body&& body) {
    const std::uintptr_t all = reinterpret_cast<std::uintptr_t>(a) | reinterpret_cast<std::uintptr_t>(b) |
                               static_cast<std::uintptr_t>(bytes);
    if (all % 16 == 0)
        body(uint4{});
    else if (all % 8 == 0)
        body(uint2{});
    else if (all % 4 == 0)
        body(std::uint32_t{});
    else if (all % 2 == 0)
        body(std::uint16_t{});
    else
        body(std::uint8_t{});
}

/// Copies the rows of `few`, which is the source or the target, from or to the rows of the other array that
/// the index names.
void copy(Stream stream, const Array& source, const Array& index, const Array& target, const Array& few,
          bool to_index) {
    const std::int64_t bytes = few.columns * static_cast<std::int64_t>(size_of(few.dtype));
    by_unit(source.data, target.data, bytes, [&]<class Unit>(Unit) {
        const std::int64_t units = bytes / static_cast<std::int64_t>(sizeof(Unit));
        const Lanes lanes = lanes_for(units);
        launch(to_index ? scatter<Unit> : gather<Unit>, lanes.blocks(few.rows), kLaneThreads, 0, stream,
               source.as<Unit>(), index.as<std::int32_t>(), target.as<Unit>(), few.rows, units, lanes);
    });
}

}  // namespace

void scatter_rows(Stream stream, const Array& source, const Array& index, const Array& target) {
    copy(stream, source, index, target, source, true);
}

void gather_rows(Stream stream, const Array& source, const Array& index, const Array& target) {
    copy(stream, source, index, target, target, false);
}

}  // namespace maestro::kernels
