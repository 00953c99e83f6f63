#include "backend/cuda/matmul_descriptor.hpp"

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
            MAESTRO_FAIL("no GEMM of {}", name_of(type));
    }
}

cublasLtEpilogue_t epilogue_of(const Backend::Epilogue& e) {
    if (e.activated) return e.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    if (e.column_sums) return CUBLASLT_EPILOGUE_BGRADB;
    return e.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

/// Sizes of a column-major matrix.
struct Size {
    std::uint64_t rows, columns;
};
Size as_stored(std::int64_t rows, std::int64_t columns, bool transposed) {
    const auto r = static_cast<std::uint64_t>(rows), c = static_cast<std::uint64_t>(columns);
    return transposed ? Size{c, r} : Size{r, c};
}
Size a_size_of(const Backend::Gemm& g) {
    return as_stored(g.n, g.k, g.transpose_b);
}
Size b_size_of(const Backend::Gemm& g) {
    return as_stored(g.k, g.m, g.transpose_a);
}
Size c_size_of(const Backend::Gemm& g) {
    return as_stored(g.n, g.m, false);
}

}  // namespace

MatmulDescriptor::MatmulDescriptor(const Backend::Gemm& g, const Backend::Epilogue& epilogue, bool tf32) {
    const bool wide = g.in == DType::f64;
    MAESTRO_CUDA_CALL(cublasLtMatmulDescCreate(operation_.out(),
                                               wide                         ? CUBLAS_COMPUTE_64F
                                               : tf32 && g.in == DType::f32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                                            : CUBLAS_COMPUTE_32F,
                                               wide ? CUDA_R_64F : CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, g.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, g.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(epilogue));
    if (epilogue.activated) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, g.ldy);
    set_epilogue_pointers(g, epilogue);
    const auto make_layout = [](Layout& layout, DType type, Size size, std::int64_t stride) {
        MAESTRO_CUDA_CALL(
            cublasLtMatrixLayoutCreate(layout.out(), type_of(type), size.rows, size.columns, stride));
    };
    make_layout(a_layout_, g.in, a_size_of(g), g.ldb);
    make_layout(b_layout_, g.in, b_size_of(g), g.lda);
    make_layout(c_layout_, g.out, c_size_of(g), g.ldy);
}

void MatmulDescriptor::set_sizes(const Backend::Gemm& g) const {
    const auto set_size = [](const Layout& layout, Size size) {
        MAESTRO_CUDA_CALL(cublasLtMatrixLayoutSetAttribute(layout.get(), CUBLASLT_MATRIX_LAYOUT_ROWS,
                                                           &size.rows, sizeof size.rows));
        MAESTRO_CUDA_CALL(cublasLtMatrixLayoutSetAttribute(layout.get(), CUBLASLT_MATRIX_LAYOUT_COLS,
                                                           &size.columns, sizeof size.columns));
    };
    set_size(a_layout_, a_size_of(g));
    set_size(b_layout_, b_size_of(g));
    set_size(c_layout_, c_size_of(g));
}

void MatmulDescriptor::set_epilogue_pointers(const Backend::Gemm& g,
                                             const Backend::Epilogue& epilogue) const {
    if (epilogue.activated) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<const void*>(g.y));
    if (const void* const vector = epilogue.column_sums ? epilogue.column_sums : epilogue.bias)
        set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector);
}

}  // namespace maestro::backend
