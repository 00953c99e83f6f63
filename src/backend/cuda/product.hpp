// What cuBLASLt is asked for, as its descriptors have it.
#pragma once

#include <cublasLt.h>

#include <utility>

#include "backend/backend.hpp"
#include "backend/cuda/check.hpp"

namespace maestro::backend {

/// Owns what a create function has made.
template <class T, cublasStatus_t (*destroy)(T)>
class Owned {
public:
    Owned() = default;
    ~Owned() {
        if (value_) destroy(value_);
    }
    Owned(Owned&& other) noexcept : value_(std::exchange(other.value_, nullptr)) {}
    Owned& operator=(Owned&& other) noexcept {
        std::swap(value_, other.value_);
        return *this;
    }
    Owned(const Owned&) = delete;
    Owned& operator=(const Owned&) = delete;
    T* to_make() { return &value_; }
    T get() const { return value_; }

private:
    T value_ = nullptr;
};

/// Its matrices are column-major. What is row-major here is its transpose there, so y^T = b^T a^T is asked
/// for: b comes first.
class Product {
public:
    Product(const Backend::Gemm& g, const Backend::Epilogue& epilogue, bool tf32);
    /// The matrices of this product from now on; it differs from that it was made for in its sizes alone.
    void resize(const Backend::Gemm& g) const;
    /// Where the epilogue reads and writes.
    void point(const Backend::Gemm& g, const Backend::Epilogue& epilogue) const;

    cublasLtMatmulDesc_t description() const { return description_.get(); }
    cublasLtMatrixLayout_t first() const { return first_.get(); }
    cublasLtMatrixLayout_t second() const { return second_.get(); }
    cublasLtMatrixLayout_t result() const { return result_.get(); }

private:
    template <class T>
    void set(cublasLtMatmulDescAttributes_t what, const T& value) const {
        MAESTRO_CUDA_CALL(cublasLtMatmulDescSetAttribute(description_.get(), what, &value, sizeof value));
    }
    using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
    Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> description_;
    Layout first_, second_, result_;
};

}  // namespace maestro::backend
