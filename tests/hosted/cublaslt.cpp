// A stand-in for the calls of cuBLASLt that the backend makes: descriptions are checked as the library
// documents them, products are worked out on the CPU when the stream gets to them.
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <thread>
#include <type_traits>
#include <vector>

#include "backend/cpu/cpu_gemm.hpp"
#include "base/dtype.hpp"
#include "hosted/cublaslt.hpp"
#include "hosted/hosted.hpp"

namespace {

using maestro::bf16;
using maestro::DType;
using maestro::backend::Backend;

struct Description {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    std::int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    void* vector = nullptr;  ///< bias, or its gradient
    void* beside = nullptr;  ///< what the activation takes
    std::int64_t beside_stride = 0;
    bool has(cublasLtEpilogue_t part) const { return (epilogue & part) == part; }
};
struct Layout {
    cudaDataType_t type;
    std::uint64_t rows, columns;
    std::int64_t stride;
};
struct Preference {
    std::uint64_t workspace = 0;
    std::uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
    std::uint32_t alignment_a = 256, alignment_b = 256, alignment_c = 256,
                  alignment_d = 256;  // as documented
};
/// What a heuristic has promised, kept in the algorithm's opaque words.
struct Promise {
    std::uint64_t rows, columns, depth;
    std::uint32_t workspace;
    std::uint16_t alignment_a, alignment_b, alignment_c, alignment_d;
    std::uint16_t number, of;  ///< of the proposal; as many were asked for
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
    const bool computes = wide ? d.compute == CUBLAS_COMPUTE_64F
                               : d.compute == CUBLAS_COMPUTE_32F ||
                                     (d.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && a.type == CUDA_R_32F);
    if (!computes || d.scale != (wide ? CUDA_R_64F : CUDA_R_32F))
        return "a compute or scale type that is not for these factors";
    const bool fits = result.type == a.type || (a.type == CUDA_R_16BF && result.type == CUDA_R_32F);
    return fits ? nullptr : "a result of a type that these factors do not give";
}

/// Ten binary digits after the first.
float to_tf32(float value) {
    return std::bit_cast<float>((std::bit_cast<std::uint32_t>(value) + 0x1000u) & ~0x1fffu);
}

template <class T, class A>
std::vector<A> widened(const void* data, const Layout& l, bool tf32) {
    std::vector<A> values(l.columns * static_cast<std::size_t>(l.stride));
    const T* from = static_cast<const T*>(data);
    for (std::uint64_t column = 0; column < l.columns; ++column)
        for (std::uint64_t row = 0; row < l.rows; ++row) {
            const std::size_t at = column * static_cast<std::size_t>(l.stride) + row;
            values[at] = static_cast<A>(from[at]);
            if constexpr (std::is_same_v<A, float>)
                if (tf32) values[at] = to_tf32(values[at]);
        }
    return values;
}

/// What a proposal does for a shape other than the one it was made for: at most half as large again, and an
/// odd number of columns or depth by itself.
bool does_for(const Promise& chosen, const Promise& now) {
    const auto near = [](std::uint64_t made, std::uint64_t size) {
        return size == made || (size < made && 2 * size >= made && size % 2 == 0);
    };
    return chosen.rows == now.rows && near(chosen.columns, now.columns) && near(chosen.depth, now.depth);
}

/// Null, or what is wrong with the epilogue.
const char* wrong_epilogue(const Description& d, const Layout& a, const Layout& result) {
    const bool known = d.epilogue == CUBLASLT_EPILOGUE_DEFAULT || d.epilogue == CUBLASLT_EPILOGUE_BIAS ||
                       d.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
                       d.epilogue == CUBLASLT_EPILOGUE_BGRADB;
    if (!known) return "an epilogue that is not done here";
    if (d.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return nullptr;
    if (a.type == CUDA_R_64F) return "an epilogue in f64";
    if (!d.vector) return "an epilogue without its vector";
    if (d.has(CUBLASLT_EPILOGUE_GELU_AUX) &&
        (!d.beside || d.beside_stride % 8 != 0 || d.beside_stride < static_cast<std::int64_t>(result.rows)))
        return "no place beside the result, or one whose stride is no multiple of 8";
    return nullptr;
}

/// GELU's tanh form.
template <class A>
A gelu(A x) {
    return A(0.5) * x * (1 + std::tanh(A(0.7978845608028654) * (x + A(0.044715) * x * x * x)));
}

template <class In, class Out, class A>
void multiply(const Description& d, const Promise& p, double alpha, const void* a, const Layout& la,
              const void* b, const Layout& lb, double beta, void* out, const Layout& lo) {
    const bool tf32 = d.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    const std::vector<A> left = widened<In, A>(a, la, tf32), right = widened<In, A>(b, lb, tf32);
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
            A value = sum[at] + (beta == 0 ? A(0) : static_cast<A>(beta) * static_cast<A>(to[at]));
            if (d.has(CUBLASLT_EPILOGUE_BIAS))
                value += static_cast<A>(static_cast<const Out*>(d.vector)[row]);
            if (d.has(CUBLASLT_EPILOGUE_GELU_AUX)) {
                static_cast<Out*>(d.beside)[column * static_cast<std::size_t>(d.beside_stride) + row] =
                    static_cast<Out>(value);
                value = gelu(value);
            }
            to[at] = static_cast<Out>(value);
        }
    for (std::uint64_t column = 0; d.has(CUBLASLT_EPILOGUE_BGRADB) && column < p.columns; ++column) {
        A total = 0;
        const auto stride = static_cast<std::size_t>(lb.stride);
        for (std::uint64_t k = 0; k < p.depth; ++k)
            total += right[d.transpose_b == CUBLAS_OP_N ? column * stride + k : k * stride + column];
        static_cast<Out*>(d.vector)[column] = static_cast<Out>(total);
    }
}

std::array<std::atomic<std::int64_t>, 3> asked_of_proposal;

}  // namespace

std::int64_t hosted::products_by(int proposal) {
    return asked_of_proposal.at(static_cast<std::size_t>(proposal));
}

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
    if (what == CUBLASLT_MATMUL_DESC_EPILOGUE) return take(d.epilogue, value, bytes);
    if (what == CUBLASLT_MATMUL_DESC_BIAS_POINTER) return take(d.vector, value, bytes);
    if (what == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER) return take(d.beside, value, bytes);
    if (what == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD) return take(d.beside_stride, value, bytes);
    return refuse("an attribute of a product that is not known here");
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t stride) {
    return make<Layout>(made, type, rows, columns, stride);
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t what, const void* value,
                                                std::size_t bytes) {
    Layout& l = of<Layout>(layout);
    if (what == CUBLASLT_MATRIX_LAYOUT_ROWS) return take(l.rows, value, bytes);
    if (what == CUBLASLT_MATRIX_LAYOUT_COLS) return take(l.columns, value, bytes);
    return refuse("an attribute of a matrix that is not known here");
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
        case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
            return take(p.schemes, value, bytes);
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
    const auto small = [](auto value) { return static_cast<std::uint16_t>(value); };
    Promise promise{0,
                    0,
                    0,
                    static_cast<std::uint32_t>(p.workspace),
                    small(p.alignment_a),
                    small(p.alignment_b),
                    small(p.alignment_c),
                    small(p.alignment_d),
                    0,
                    small(asked)};
    *count = 0;
    if (of<Layout>(d).type == CUDA_R_16BF && (p.schemes & CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE) != 0)
        return refuse("parts of a sum that may be added up in bf16");
    if (asked < 1) return refuse("no algorithm asked for");
    const Description& product = of<Description>(description);
    if (const char* wrong =
            shape_of(product, of<Layout>(a), of<Layout>(b), of<Layout>(c), of<Layout>(d), promise))
        return refuse(wrong);
    if (product.epilogue != CUBLASLT_EPILOGUE_DEFAULT && of<Layout>(a).type == CUDA_R_64F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (const char* wrong = wrong_epilogue(product, of<Layout>(a), of<Layout>(d))) return refuse(wrong);
    for (; *count < std::min(asked, static_cast<int>(asked_of_proposal.size())); ++*count) {
        cublasLtMatmulHeuristicResult_t& result = results[*count];
        result = {};
        promise.number = small(*count);
        std::memcpy(&result.algo, &promise, sizeof promise);
        result.workspaceSize = p.workspace;
        result.state = CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t description,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
    Promise chosen{}, now{};
    std::memcpy(&chosen, algorithm, sizeof chosen);
    if (const char* wrong = shape_of(of<Description>(description), of<Layout>(a), of<Layout>(b),
                                     of<Layout>(c), of<Layout>(d), now))
        return refuse(wrong);
    *result = {};
    result->algo = *algorithm;
    result->workspaceSize = chosen.workspace;
    return does_for(chosen, now) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
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
    if (!does_for(chosen, now)) return refuse("an algorithm that was chosen for another shape");
    if (const char* wrong = wrong_epilogue(product, la, ld)) return refuse(wrong);
    if (product.vector && product.epilogue != CUBLASLT_EPILOGUE_DEFAULT && !hosted::is_device(product.vector))
        return refuse("an epilogue's vector that is not the device's");
    if (product.has(CUBLASLT_EPILOGUE_GELU_AUX) &&
        (!hosted::is_device(product.beside) || !aligned(product.beside, 16)))
        return refuse("a place beside the result that is not the device's, or not aligned to 16 bytes");
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
    ++asked_of_proposal[chosen.number];
    const auto work = [=] {
        if (chosen.of > 1 && chosen.number != hosted::kFastProposal)
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
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
