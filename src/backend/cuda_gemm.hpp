// Products on a GPU by cuBLASLt.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "backend/backend.hpp"
#include "base/stream.hpp"

namespace maestro::backend {

/// Owns the library's handle, its workspace and what it has chosen for each shape. Not thread-safe; every
/// product goes to the stream that it was made for.
class CudaGemm {
public:
    explicit CudaGemm(Stream stream);
    ~CudaGemm();
    CudaGemm(const CudaGemm&) = delete;
    CudaGemm& operator=(const CudaGemm&) = delete;
    /// Backend::Gemm; bf16 factors are multiplied with sums in f32, f32 ones without tf32.
    void run(const Backend::Gemm& g);
    std::string describe() const;  ///< the library, for the log

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace maestro::backend
