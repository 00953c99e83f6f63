#include "backend/cpu/cpu_gemm.hpp"

#include <cblas.h>

#include <oneapi/dnnl/dnnl.hpp>

namespace maestro::backend {

void cpu_gemm(const Backend::Gemm& g) {
    MAESTRO_CHECK(g.in == g.out, "a GEMM of {} with a result of {}", name_of(g.in), name_of(g.out));
    if (g.in == DType::f32) {
        const auto status = dnnl_sgemm(g.transpose_a ? 'T' : 'N', g.transpose_b ? 'T' : 'N', g.m, g.n, g.k,
                                       static_cast<float>(g.alpha), static_cast<const float*>(g.a), g.lda,
                                       static_cast<const float*>(g.b), g.ldb, g.accumulate ? 1.0f : 0.0f,
                                       static_cast<float*>(g.y), g.ldy);
        MAESTRO_CHECK(status == dnnl_success, "dnnl_sgemm returned {}", static_cast<int>(status));
    } else {
        MAESTRO_CHECK(g.in == DType::f64, "no GEMM of {}", name_of(g.in));
        cblas_dgemm(CblasRowMajor, g.transpose_a ? CblasTrans : CblasNoTrans,
                    g.transpose_b ? CblasTrans : CblasNoTrans, static_cast<int>(g.m), static_cast<int>(g.n),
                    static_cast<int>(g.k), g.alpha, static_cast<const double*>(g.a), static_cast<int>(g.lda),
                    static_cast<const double*>(g.b), static_cast<int>(g.ldb), g.accumulate ? 1.0 : 0.0,
                    static_cast<double*>(g.y), static_cast<int>(g.ldy));
    }
}

}  // namespace maestro::backend
