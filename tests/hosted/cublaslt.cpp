// A stand-in for the calls of cuBLASLt that the backend makes: descriptions are checked as the library
// documents them, products are worked out on the CPU when the stream gets to them.
#include <cublasLt.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <vector>

#include "backend/cpu_gemm.hpp"
#include "base/dtype.hpp"
#include "hosted/hosted.hpp"

namespace {

using maestro::bf16;
using maestro::DType;
using maestro::backend::Backend;

struct Description {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    std::int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
};
struct Layout {
    cudaDataType_t type;
    std::uint64_t rows, columns;
    std::int64_t stride;
};
struct Preference {
    std::uint64_t workspace = 0;
    std::uint32_t alignment_a = 256, alignment_b = 256, alignment_c = 256,
                  alignment_d = 256;  // as documented
};
/// What a heuristic has promised, kept in the algorithm's opaque words.
struct Promise {
    std::uint64_t rows, columns, depth, workspace;
    std::uint32_t alignment_a, alignment_b, alignment_c, alignment_d;
};
static_assert(sizeof(Promise) <= sizeof(cublasLtMatmulAlgo_t));

template <class T>
T& of(void* opaque) {
    return *static_cast<T*>(opaque);
}

cublasStatus_t refuse(const char* why) {
    std::fprintf(stderr, "hosted cuBLASLt: %s\n", why);
    return CUBLAS_STATUS_INVALID_VALUE;
}

template <class T, class Handle, class... Arguments>
cublasStatus_t make(Handle* handle, Arguments... arguments) {
    *handle = reinterpret_cast<Handle>(new T{arguments...});
    return CUBLAS_STATUS_SUCCESS;
}
template <class T, class Handle>
cublasStatus_t destroy(Handle handle) {
    delete reinterpret_cast<T*>(handle);
    return CUBLAS_STATUS_SUCCESS;
}
template <class T>
cublasStatus_t take(T& target, const void* value, std::size_t bytes) {
    if (bytes != sizeof target) return refuse("an attribute of another size");
    std::memcpy(&target, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

bool aligned(const void* pointer, std::uint32_t to) {
    return reinterpret_cast<std::uintptr_t>(pointer) % to == 0;
}

/// m, n, k of the column-major product, or nullptr and what is wrong.
const char* shape_of(const Description& d, const Layout& a, const Layout& b, const Layout& c,
                     const Layout& result, Promise& p) {
    p.rows = d.transpose_a == CUBLAS_OP_N ? a.rows : a.columns;
    p.depth = d.transpose_a == CUBLAS_OP_N ? a.columns : a.rows;
    p.columns = d.transpose_b == CUBLAS_OP_N ? b.columns : b.rows;
    if (p.depth != (d.transpose_b == CUBLAS_OP_N ? b.rows : b.columns)) return "factors that do not fit";
    if (p.rows == 0 || p.columns == 0 || p.depth == 0) return "an empty product";
    if (result.rows != p.rows || result.columns != p.columns) return "a result of another shape";
    if (c.type != result.type || c.rows != result.rows || c.columns != result.columns)
        return "C and D that differ";
    for (const Layout* l : {&a, &b, &c, &result})
        if (l->stride < static_cast<std::int64_t>(l->rows)) return "a leading dimension below the rows";
    const bool wide = a.type == CUDA_R_64F;
    if (a.type != b.type) return "factors of two types";
    if (d.compute != (wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F) ||
        d.scale != (wide ? CUDA_R_64F : CUDA_R_32F))
        return "a compute or scale type that is not for these factors";
    const bool fits = result.type == a.type || (a.type == CUDA_R_16BF && result.type == CUDA_R_32F);
    return fits ? nullptr : "a result of a type that these factors do not give";
}

template <class T, class A>
std::vector<A> widened(const void* data, const Layout& l) {
    std::vector<A> values(l.columns * static_cast<std::size_t>(l.stride));
    const T* from = static_cast<const T*>(data);
    for (std::uint64_t column = 0; column < l.columns; ++column)
        for (std::uint64_t row = 0; row < l.rows; ++row) {
            const std::size_t at = column * static_cast<std::size_t>(l.stride) + row;
            values[at] = static_cast<A>(from[at]);
        }
    return values;
}

template <class In, class Out, class A>
void multiply(const Description& d, const Promise& p, double alpha, const void* a, const Layout& la,
              const void* b, const Layout& lb, double beta, void* out, const Layout& lo) {
    const std::vector<A> left = widened<In, A>(a, la), right = widened<In, A>(b, lb);
    std::vector<A> sum(lo.columns * static_cast<std::size_t>(lo.stride));
    // Column-major there is the transpose here, so the factors change places.
    maestro::backend::cpu_gemm({.a = right.data(),
                                .b = left.data(),
                                .y = sum.data(),
                                .m = static_cast<std::int64_t>(p.columns),
                                .n = static_cast<std::int64_t>(p.rows),
                                .k = static_cast<std::int64_t>(p.depth),
                                .lda = lb.stride,
                                .ldb = la.stride,
                                .ldy = lo.stride,
                                .transpose_a = d.transpose_b != CUBLAS_OP_N,
                                .transpose_b = d.transpose_a != CUBLAS_OP_N,
                                .accumulate = false,
                                .in = maestro::dtype_of<A>(),
                                .out = maestro::dtype_of<A>()},
                               alpha);
    Out* const to = static_cast<Out*>(out);
    for (std::uint64_t column = 0; column < lo.columns; ++column)
        for (std::uint64_t row = 0; row < lo.rows; ++row) {
            const std::size_t at = column * static_cast<std::size_t>(lo.stride) + row;
            const A before = beta == 0 ? A(0) : static_cast<A>(beta) * static_cast<A>(to[at]);
            to[at] = static_cast<Out>(sum[at] + before);
        }
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
    return make<int>(handle, 0);
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    return destroy<int>(handle);
}
std::size_t cublasLtGetVersion() {
    return CUBLAS_VERSION;
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
    return status == CUBLAS_STATUS_SUCCESS ? "success" : "an invalid value (hosted cuBLASLt)";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    return make<Description>(made, compute, scale);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
    return destroy<Description>(description);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t what, const void* value,
                                              std::size_t bytes) {
    Description& d = of<Description>(description);
    if (what == CUBLASLT_MATMUL_DESC_TRANSA) return take(d.transpose_a, value, bytes);
    if (what == CUBLASLT_MATMUL_DESC_TRANSB) return take(d.transpose_b, value, bytes);
    return refuse("an attribute of a product that is not known here");
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t stride) {
    return make<Layout>(made, type, rows, columns, stride);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    return destroy<Layout>(layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
    return make<Preference>(made);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    return destroy<Preference>(preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void* value, std::size_t bytes) {
    Preference& p = of<Preference>(preference);
    switch (what) {
        case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
            return take(p.workspace, value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
            return take(p.alignment_a, value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
            return take(p.alignment_b, value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
            return take(p.alignment_c, value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
            return take(p.alignment_d, value, bytes);
        default:
            return refuse("a preference that is not known here");
    }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int asked,
                                              cublasLtMatmulHeuristicResult_t results[], int* count) {
    const Preference& p = of<Preference>(preference);
    Promise promise{0, 0, 0, p.workspace, p.alignment_a, p.alignment_b, p.alignment_c, p.alignment_d};
    if (asked < 1) return refuse("no algorithm asked for");
    if (const char* wrong = shape_of(of<Description>(description), of<Layout>(a), of<Layout>(b),
                                     of<Layout>(c), of<Layout>(d), promise))
        return refuse(wrong);
    results[0] = {};
    std::memcpy(&results[0].algo, &promise, sizeof promise);
    results[0].workspaceSize = p.workspace;
    results[0].state = CUBLAS_STATUS_SUCCESS;
    *count = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t layout_a, const void* b,
                              cublasLtMatrixLayout_t layout_b, const void* beta, const void* c,
                              cublasLtMatrixLayout_t layout_c, void* d, cublasLtMatrixLayout_t layout_d,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, std::size_t bytes,
                              cudaStream_t stream) {
    if (!handle || !algorithm) return refuse("no handle, or no algorithm");
    const Description product = of<Description>(description);
    const Layout la = of<Layout>(layout_a), lb = of<Layout>(layout_b), ld = of<Layout>(layout_d);
    Promise chosen{}, now{};
    std::memcpy(&chosen, algorithm, sizeof chosen);
    if (const char* wrong = shape_of(product, la, lb, of<Layout>(layout_c), ld, now)) return refuse(wrong);
    if (now.rows != chosen.rows || now.columns != chosen.columns || now.depth != chosen.depth)
        return refuse("an algorithm that was chosen for another shape");
    if (!aligned(a, chosen.alignment_a) || !aligned(b, chosen.alignment_b) ||
        !aligned(c, chosen.alignment_c) || !aligned(d, chosen.alignment_d))
        return refuse("an address that is less aligned than was said when the algorithm was chosen");
    if (bytes < chosen.workspace || !aligned(workspace, 16)) return refuse("too small a workspace");
    if (!hosted::is_device(a) || !hosted::is_device(b) || !hosted::is_device(d) ||
        (bytes > 0 && !hosted::is_device(workspace, bytes)))
        return refuse("memory that is not the device's");
    const bool wide = product.scale == CUDA_R_64F;
    const double by = wide ? *static_cast<const double*>(alpha) : *static_cast<const float*>(alpha);
    const double keep = wide ? *static_cast<const double*>(beta) : *static_cast<const float*>(beta);
    if (keep != 0 && c != d) return refuse("C and D in two places: not done here");
    const auto work = [=] {
        std::memset(workspace, 0xff, std::min(bytes, std::size_t{1} << 16));  // it may be written to
        if (la.type == CUDA_R_64F)
            multiply<double, double, double>(product, now, by, a, la, b, lb, keep, d, ld);
        else if (la.type == CUDA_R_32F)
            multiply<float, float, float>(product, now, by, a, la, b, lb, keep, d, ld);
        else if (ld.type == CUDA_R_32F)
            multiply<bf16, float, float>(product, now, by, a, la, b, lb, keep, d, ld);
        else
            multiply<bf16, bf16, float>(product, now, by, a, la, b, lb, keep, d, ld);
    };
    return hosted::enqueue(stream, work, "a product of cuBLASLt") == cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
