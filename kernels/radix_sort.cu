#include "kernels/radix_sort.hpp"

#include <utility>

#include "kernels/device/block.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/forms.hpp"

namespace maestro::kernels {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kRounds = RadixSort::kTile / kThreads;  ///< rows of a lane
constexpr int kScanThreads = 512, kScanItems = 4;

/// One pass: the digit of `bits` bits from `shift` on, of the keys of the rows in `source` (null: all rows,
/// in order).
struct Pass {
    const std::int32_t *keys, *source;
    std::int32_t* counts;  ///< [bins, tiles]
    std::int64_t rows;
    std::int32_t negative;  ///< the key that negative keys are sorted as
    int shift, bits;

    __device__ __forceinline__ int bins() const { return 1 << bits; }
    __device__ __forceinline__ std::int32_t row(std::int64_t place) const {
        return source == nullptr ? static_cast<std::int32_t>(place) : source[place];
    }
    __device__ __forceinline__ int digit(std::int32_t row) const {
        const std::int32_t key = keys[row];
        return ((key < 0 ? negative : key) >> shift) & (bins() - 1);
    }
};

/// Counts the rows of each digit per warp in `counts` [kWarps, bins], shared memory. A warp handles
/// consecutive rows of the block's tile, 32 at a time. Calls each(round, row, digit, rank) for the rows of
/// this lane, where rank is how many of the warp's earlier rows have the same digit.
template <class Each>
__device__ __forceinline__ void count_tile(const Pass& pass, std::int32_t* counts, Each each) {
    const int lane = static_cast<int>(threadIdx.x % kWarp), warp = static_cast<int>(threadIdx.x / kWarp);
    for (int i = static_cast<int>(threadIdx.x); i < kWarps * pass.bins(); i += kThreads) counts[i] = 0;
    __syncthreads();
    std::int32_t* const warp_counts = counts + warp * pass.bins();
    const std::int64_t begin =
        static_cast<std::int64_t>(blockIdx.x) * RadixSort::kTile + warp * kRounds * kWarp + lane;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
        const std::int64_t place = begin + round * kWarp;
        const bool inside = place < pass.rows;
        const std::int32_t row = inside ? pass.row(place) : 0;
        const int digit = inside ? pass.digit(row) : 0;
        // The lanes with this lane's digit: those that agree with it on every bit.
        unsigned peers = __ballot_sync(0xffffffffu, inside);
        for (int bit = 0; bit < pass.bits; ++bit) {
            const unsigned set = __ballot_sync(0xffffffffu, digit >> bit & 1);
            peers &= (digit >> bit & 1) != 0 ? set : ~set;
        }
        const int before = __popc(peers & ((1u << lane) - 1));
        if (inside) each(round, row, digit, warp_counts[digit] + before);
        __syncwarp();  // all peers have read the count before the first of them raises it
        if (inside && before == 0) warp_counts[digit] += __popc(peers);
        __syncwarp();
    }
    __syncthreads();
}

/// counts[digit, tile] = the rows of the tile with that digit. A block handles a tile.
__global__ void __launch_bounds__(kThreads) count_digits(Pass pass) {
    std::int32_t* const counts = shared_memory<std::int32_t>();
    count_tile(pass, counts, [](int, std::int32_t, int, std::int32_t) {});
    for (int digit = static_cast<int>(threadIdx.x); digit < pass.bins(); digit += kThreads) {
        std::int32_t sum = 0;
        for (int warp = 0; warp < kWarps; ++warp) sum += counts[warp * pass.bins() + digit];
        pass.counts[static_cast<std::int64_t>(digit) * gridDim.x + blockIdx.x] = sum;
    }
}

/// The sum over the lanes of a warp up to this one, this one included.
__device__ __forceinline__ std::int32_t scan_warp(std::int32_t value) {
    const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
        const std::int32_t other = __shfl_up_sync(0xffffffffu, value, static_cast<unsigned>(distance));
        if (lane >= distance) value += other;
    }
    return value;
}

/// Exclusive prefix sum in place, by one block.
__global__ void __launch_bounds__(kScanThreads) scan_counts(std::int32_t* counts, std::int64_t size) {
    constexpr int kScanWarps = kScanThreads / kWarp;
    std::int32_t* const warp_sums = shared_memory<std::int32_t>();  // [kWarp]
    const int lane = static_cast<int>(threadIdx.x % kWarp), warp = static_cast<int>(threadIdx.x / kWarp);
    std::int32_t total = 0;
    for (std::int64_t begin = 0; begin < size; begin += kScanThreads * kScanItems) {
        const std::int64_t at = begin + threadIdx.x * kScanItems;
        std::int32_t value[kScanItems], sum = 0;
#pragma unroll
        for (int i = 0; i < kScanItems; ++i) {
            value[i] = at + i < size ? counts[at + i] : 0;
            sum += value[i];
        }
        const std::int32_t scanned = scan_warp(sum);
        if (lane == kWarp - 1) warp_sums[warp] = scanned;
        __syncthreads();
        if (warp == 0) warp_sums[lane] = scan_warp(lane < kScanWarps ? warp_sums[lane] : 0);
        __syncthreads();
        std::int32_t before = total + (warp > 0 ? warp_sums[warp - 1] : 0) + scanned - sum;
        total += warp_sums[kScanWarps - 1];
        __syncthreads();  // all have read the sums before the next round overwrites them
#pragma unroll
        for (int i = 0; i < kScanItems; ++i) {
            if (at + i < size) counts[at + i] = before;
            before += value[i];
        }
    }
}

/// target = the rows, stably sorted by the digit. pass.counts: the prefix sums of the counts. A row's place
/// is that of its digit and tile, plus the rows of earlier warps and the earlier rows of the same warp.
__global__ void __launch_bounds__(kThreads) place_rows(Pass pass, std::int32_t* target) {
    std::int32_t* const counts = shared_memory<std::int32_t>();
    std::int32_t rows[kRounds], ranks[kRounds];
    int digits[kRounds];
#pragma unroll
    for (int round = 0; round < kRounds; ++round) digits[round] = -1;
    count_tile(pass, counts, [&](int round, std::int32_t row, int digit, std::int32_t rank) {
        rows[round] = row;
        digits[round] = digit;
        ranks[round] = rank;
    });
    for (int digit = static_cast<int>(threadIdx.x); digit < pass.bins(); digit += kThreads) {
        std::int32_t place = pass.counts[static_cast<std::int64_t>(digit) * gridDim.x + blockIdx.x];
        for (int warp = 0; warp < kWarps; ++warp) {
            std::int32_t& count = counts[warp * pass.bins() + digit];
            const std::int32_t next = place + count;
            count = place;
            place = next;
        }
    }
    __syncthreads();
    const std::int32_t* const places = counts + static_cast<int>(threadIdx.x / kWarp) * pass.bins();
#pragma unroll
    for (int round = 0; round < kRounds; ++round)
        if (digits[round] >= 0) target[places[digits[round]] + ranks[round]] = rows[round];
}

}  // namespace

const std::int32_t* sort_rows(Stream stream, const RadixSort& sort, const std::int32_t* keys,
                              std::int32_t* scratch) {
    const bool second = use_nvcc_forms(kNvccForms);
    if constexpr (kNvccForms)
        if (second) return nvcc::sort_rows(stream, sort, keys, scratch);
    const std::int64_t size = sort.bins() * sort.tiles;
    const std::size_t shared = static_cast<std::size_t>(kWarps * sort.bins()) * sizeof(std::int32_t);
    std::int32_t *source = nullptr, *target = scratch + size, *spare = target + sort.rows;
    Pass pass{keys, nullptr, scratch, sort.rows, static_cast<std::int32_t>(sort.keys), 0, sort.digit_bits};
    for (int i = 0; i < sort.passes; ++i, pass.shift += sort.digit_bits) {
        pass.source = source;
        launch(count_digits, sort.tiles, kThreads, shared, stream, pass);
        launch(scan_counts, sort.tiles > 0 ? 1 : 0, kScanThreads, kWarp * sizeof(std::int32_t), stream,
               scratch, size);
        launch(place_rows, sort.tiles, kThreads, shared, stream, pass, target);
        source = std::exchange(target, spare);
        spare = source;
    }
    return source;
}

}  // namespace maestro::kernels
