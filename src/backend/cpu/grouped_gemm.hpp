// The GEMMs of groups of rows on the CPU, one loop over tiles of all groups.
#pragma once

#include <memory>
#include <vector>

#include "backend/cpu/bf16_gemm.hpp"

namespace maestro::backend {

/// Divides the GEMMs of all groups into tiles that are computed independently of each other, the largest
/// first. They depend on the shapes alone, so that the number of threads does not change the result.
std::vector<Backend::Gemm> tiles_of(const Backend::GroupedGemm& g);

/// Not thread-safe.
class CpuGroupedGemm {
public:
    /// Uses up to `threads` threads, each of which computes whole tiles.
    explicit CpuGroupedGemm(int threads) : threads_(threads), bf16_(static_cast<std::size_t>(threads)) {}
    void run(const Backend::GroupedGemm& g);

private:
    int threads_;
    std::vector<std::unique_ptr<Bf16Gemm>> bf16_;  ///< one for each thread, made when it is first used
};

}  // namespace maestro::backend
