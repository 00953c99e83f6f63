// Products on a GPU by cuBLASLt.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "backend/backend.hpp"
#include "backend/cuda/stream.hpp"

namespace maestro::backend {

/// Bytes that a CudaGemm allocates, as much as cuBLAS takes on Hopper.
inline constexpr std::size_t kProductWorkspace = std::size_t{32} << 20;

/// Owns the library's handle, its workspace and what it has chosen for each shape. Not thread-safe; every
/// product goes to the stream that it was made for.
class CudaGemm {
public:
    /// `wait` returns when an event is reached.
    CudaGemm(Stream stream, GemmOptions options, std::function<void(const CudaEvent&)> wait);
    ~CudaGemm();
    CudaGemm(const CudaGemm&) = delete;
    CudaGemm& operator=(const CudaGemm&) = delete;
    /// Backend::gemm_with; bf16 factors are multiplied with sums in f32. An algorithm is chosen once for a
    /// class of shapes, which have the same matrix of weights and about as many rows of activations. False,
    /// and nothing is done, where the library has no such epilogue; without one there always is a product.
    bool run(const Backend::Gemm& g, const Backend::Epilogue& epilogue);
    std::string describe() const;  ///< the library, for the log

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace maestro::backend
