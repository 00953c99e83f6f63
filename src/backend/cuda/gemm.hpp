// GEMMs on a GPU by cuBLASLt.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "backend/backend.hpp"
#include "backend/cuda/stream.hpp"
#include "backend/gpus.hpp"

namespace maestro::backend {

/// Owns the library's handle, a workspace, and the algorithm chosen for each class of shapes. Not
/// thread-safe. All GEMMs run on the stream that it was constructed with. Allocates nothing after its
/// construction.
class CudaGemm {
public:
    /// `wait` blocks until the device has reached an event.
    CudaGemm(Stream stream, GemmOptions options, std::function<void(const CudaEvent&)> wait);
    ~CudaGemm();
    CudaGemm(const CudaGemm&) = delete;
    CudaGemm& operator=(const CudaGemm&) = delete;
    /// Backend::gemm_with(). bf16 inputs are accumulated in fp32. An algorithm is chosen once per class of
    /// shapes: the same weight matrix, and a similar number of activation rows. Returns false, and does
    /// nothing, where the library does not support the epilogue. Throws where it does not support a GEMM
    /// without one.
    bool run(const Backend::Gemm& g, const Backend::Epilogue& epilogue);
    std::string describe() const;  ///< library version and options, for the log

private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace maestro::backend
