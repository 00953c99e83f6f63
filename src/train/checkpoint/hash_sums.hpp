// Hashes of files of which every rank has computed a part (base/adhash.hpp).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.hpp"

namespace maestro::train {

/// Collective. Returns on rank 0 the sums of the values over all ranks, modulo 2^64, and zeros elsewhere.
inline std::vector<std::uint64_t> sums_on_first(const comm::Communicator& world,
                                                std::span<const std::uint64_t> values) {
    std::vector<std::uint64_t> sums(values.size(), 0);
    for (const std::vector<std::uint64_t>& of_rank : world.gather(values))
        for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += of_rank[i];
    return sums;
}

}  // namespace maestro::train
