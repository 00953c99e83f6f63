#include "base/random.hpp"

#include <xxhash.h>

#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

namespace maestro {

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> c, std::array<std::uint32_t, 2> k) {
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c[0];
        const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c[2];
        c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<std::uint32_t>(p1),
             static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<std::uint32_t>(p0)};
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
    return c;
}

Random::Random(std::uint64_t seed, std::string_view stream)
    : seed_(seed), stream_(XXH64(stream.data(), stream.size(), 0)) {}

std::uint64_t Random::bits(std::uint64_t index) const {
    const auto r = philox({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                           static_cast<std::uint32_t>(stream_), static_cast<std::uint32_t>(stream_ >> 32)},
                          {static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32)});
    return (std::uint64_t{r[1]} << 32) | r[0];
}

double Random::uniform(std::uint64_t index) const {
    return static_cast<double>(bits(index) >> 11) * 0x1.0p-53;
}

double Random::normal(std::uint64_t index) const {
    const std::uint64_t r = bits(index);
    const double u = (static_cast<double>(r >> 32) + 0.5) * 0x1.0p-32;
    const double v = (static_cast<double>(r & 0xffffffffu) + 0.5) * 0x1.0p-32;
    return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

std::vector<std::int64_t> Random::permutation(std::int64_t n) const {
    std::vector<std::int64_t> order(static_cast<std::size_t>(n));
    std::iota(order.begin(), order.end(), std::int64_t{0});
    for (std::int64_t i = n - 1; i > 0; --i) {
        const auto j = static_cast<std::int64_t>(bits(static_cast<std::uint64_t>(i)) %
                                                 static_cast<std::uint64_t>(i + 1));
        std::swap(order[i], order[j]);
    }
    return order;
}

}  // namespace maestro
