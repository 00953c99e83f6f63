// Products of bf16 matrices on the CPU: by oneDNN where the processor multiplies bf16, else by fp32 products
// of converted panels. Both add up in fp32 and round once, where the result is bf16.
#pragma once

#include <memory>

#include "backend/backend.hpp"

namespace maestro::backend {

/// Not thread-safe; uses the rank's threads. The same product gives the same bits again.
class Bf16Gemm {
public:
    virtual ~Bf16Gemm() = default;
    /// Backend::Gemm with bf16 factors and a bf16 or f32 result.
    virtual void run(const Backend::Gemm& g) = 0;
    virtual const char* describe() const = 0;  ///< what multiplies, for the log
};

/// oneDNN's own; null where that would not use instructions for bf16.
std::unique_ptr<Bf16Gemm> make_bf16_native();
/// fp32 products of converted panels, on any processor.
std::unique_ptr<Bf16Gemm> make_bf16_panels();

}  // namespace maestro::backend
