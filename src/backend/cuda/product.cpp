#include "backend/cuda/product.hpp"

namespace maestro::backend {

namespace {

cudaDataType_t type_of(DType type) {
    switch (type) {
        case DType::f32:
            return CUDA_R_32F;
        case DType::bf16:
            return CUDA_R_16BF;
        case DType::f64:
            return CUDA_R_64F;
        default:
            MAESTRO_FAIL("no products of {}", name_of(type));
    }
}

cublasLtEpilogue_t kind_of(const Backend::Epilogue& e) {
    if (e.activated) return e.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    if (e.column_sums) return CUBLASLT_EPILOGUE_BGRADB;
    return e.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

struct Size {
    std::uint64_t rows, columns;
};
Size as_stored(std::int64_t rows, std::int64_t columns, bool transposed) {
    const auto r = static_cast<std::uint64_t>(rows), c = static_cast<std::uint64_t>(columns);
    return transposed ? Size{c, r} : Size{r, c};
}
Size first_of(const Backend::Gemm& g) {
    return as_stored(g.n, g.k, g.transpose_b);
}
Size second_of(const Backend::Gemm& g) {
    return as_stored(g.k, g.m, g.transpose_a);
}
Size result_of(const Backend::Gemm& g) {
    return as_stored(g.n, g.m, false);
}

}  // namespace

Product::Product(const Backend::Gemm& g, const Backend::Epilogue& epilogue, bool tf32) {
    const bool wide = g.in == DType::f64;
    MAESTRO_CUDA_CALL(cublasLtMatmulDescCreate(description_.to_make(),
                                               wide                         ? CUBLAS_COMPUTE_64F
                                               : tf32 && g.in == DType::f32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                                            : CUBLAS_COMPUTE_32F,
                                               wide ? CUDA_R_64F : CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, g.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, g.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, kind_of(epilogue));
    if (epilogue.activated) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, g.ldy);
    point(g, epilogue);
    const auto make = [](Layout& layout, DType type, Size size, std::int64_t stride) {
        MAESTRO_CUDA_CALL(
            cublasLtMatrixLayoutCreate(layout.to_make(), type_of(type), size.rows, size.columns, stride));
    };
    make(first_, g.in, first_of(g), g.ldb);
    make(second_, g.in, second_of(g), g.lda);
    make(result_, g.out, result_of(g), g.ldy);
}

void Product::resize(const Backend::Gemm& g) const {
    const auto set_size = [](const Layout& layout, Size size) {
        MAESTRO_CUDA_CALL(cublasLtMatrixLayoutSetAttribute(layout.get(), CUBLASLT_MATRIX_LAYOUT_ROWS,
                                                           &size.rows, sizeof size.rows));
        MAESTRO_CUDA_CALL(cublasLtMatrixLayoutSetAttribute(layout.get(), CUBLASLT_MATRIX_LAYOUT_COLS,
                                                           &size.columns, sizeof size.columns));
    };
    set_size(first_, first_of(g));
    set_size(second_, second_of(g));
    set_size(result_, result_of(g));
}

void Product::point(const Backend::Gemm& g, const Backend::Epilogue& epilogue) const {
    if (epilogue.activated) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<const void*>(g.y));
    if (const void* const vector = epilogue.column_sums ? epilogue.column_sums : epilogue.bias)
        set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector);
}

}  // namespace maestro::backend
