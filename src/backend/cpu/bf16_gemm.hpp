// GEMMs of bf16 matrices on the CPU: by oneDNN where the processor has bf16 instructions, otherwise by fp32
// GEMMs of converted panels. Both accumulate in fp32 and round a bf16 result once.
#pragma once

#include <memory>

#include "backend/backend.hpp"

namespace maestro::backend {

/// Uses the threads of the rank, or within a parallel region those that the calling thread may start there
/// (omp_set_num_threads). Not thread-safe itself. Deterministic: the same GEMM gives the same bits.
class Bf16Gemm {
public:
    virtual ~Bf16Gemm() = default;
    /// Computes a Backend::Gemm with bf16 inputs and a bf16 or f32 result.
    virtual void run(const Backend::Gemm& g) = 0;
    virtual const char* describe() const = 0;  ///< the instructions that are used, for the log
};

/// What an implementation is fast for: the GEMMs of layers, or those of groups of some hundred rows.
enum class Bf16Use { layers, groups };
/// Returns oneDNN's bf16 GEMM, or null where it would not use bf16 instructions.
std::unique_ptr<Bf16Gemm> make_bf16_native(Bf16Use use = Bf16Use::layers);
/// Returns fp32 GEMMs of converted panels, which run on any processor.
std::unique_ptr<Bf16Gemm> make_bf16_panels();

}  // namespace maestro::backend
