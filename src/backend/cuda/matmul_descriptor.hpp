// A GEMM as cuBLASLt's descriptors express it.
#pragma once

#include <cublasLt.h>

#include <utility>

#include "backend/backend.hpp"
#include "backend/cuda/check.hpp"

namespace maestro::backend {

/// Owns an object of the library; `destroy` frees it.
template <class T, cublasStatus_t (*destroy)(T)>
class LibraryHandle {
public:
    LibraryHandle() = default;
    ~LibraryHandle() {
        if (value_) destroy(value_);
    }
    LibraryHandle(LibraryHandle&& other) noexcept : value_(std::exchange(other.value_, nullptr)) {}
    LibraryHandle& operator=(LibraryHandle&& other) noexcept {
        std::swap(value_, other.value_);
        return *this;
    }
    LibraryHandle(const LibraryHandle&) = delete;
    LibraryHandle& operator=(const LibraryHandle&) = delete;
    /// For the library's create functions.
    T* out() { return &value_; }
    T get() const { return value_; }

private:
    T value_ = nullptr;
};

/// Owns the descriptors of a GEMM. cuBLASLt's matrices are column-major, and a row-major matrix is the
/// transpose of a column-major one. So y = a b is computed as y^T = b^T a^T: the library's A is our b, and
/// its B is our a.
class MatmulDescriptor {
public:
    MatmulDescriptor(const Backend::Gemm& g, const Backend::Epilogue& epilogue, bool tf32);
    /// Changes the sizes of the matrices to those of `g`, which must equal the GEMM of construction
    /// otherwise.
    void set_sizes(const Backend::Gemm& g) const;
    /// Sets the addresses that the epilogue reads and writes. They differ from call to call.
    void set_epilogue_pointers(const Backend::Gemm& g, const Backend::Epilogue& epilogue) const;

    cublasLtMatmulDesc_t operation() const { return operation_.get(); }
    cublasLtMatrixLayout_t a_layout() const { return a_layout_.get(); }
    cublasLtMatrixLayout_t b_layout() const { return b_layout_.get(); }
    cublasLtMatrixLayout_t c_layout() const { return c_layout_.get(); }

private:
    template <class T>
    void set(cublasLtMatmulDescAttributes_t what, const T& value) const {
        MAESTRO_CUDA_CALL(cublasLtMatmulDescSetAttribute(operation_.get(), what, &value, sizeof value));
    }
    using Layout = LibraryHandle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
    LibraryHandle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> operation_;
    Layout a_layout_, b_layout_, c_layout_;
};

}  // namespace maestro::backend
