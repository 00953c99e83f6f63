// Simulated cuBLASLt: the calls that the backend makes. Descriptors are checked against the library's
// documentation. GEMMs are computed on the CPU when the stream reaches them.
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

struct MatmulDesc {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    std::int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    void* bias = nullptr;  ///< the bias, or the bias gradient
    void* aux = nullptr;   ///< the input of GELU
    std::int64_t aux_stride = 0;
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
                  alignment_d = 256;  // the documented defaults
};
/// What an algorithm was selected for. It is stored in the opaque bytes of cublasLtMatmulAlgo_t.
struct Selection {
    std::uint64_t rows, columns, depth;
    std::uint32_t workspace;
    std::uint16_t alignment_a, alignment_b, alignment_c, alignment_d;
    std::uint16_t candidate, requested_count;  ///< index of the candidate, and how many were requested
};
static_assert(sizeof(Selection) <= sizeof(cublasLtMatmulAlgo_t));

template <class T>
T& as(void* opaque) {
    return *static_cast<T*>(opaque);
}

cublasStatus_t reject(const char* why) {
    std::fprintf(stderr, "simulated cuBLASLt: %s\n", why);
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
cublasStatus_t set_attribute(T& target, const void* value, std::size_t bytes) {
    if (bytes != sizeof target) return reject("an attribute of another size");
    std::memcpy(&target, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

std::size_t bytes_per_element(cudaDataType_t type) {
    return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
}

bool aligned(const void* pointer, std::uint32_t to) {
    return reinterpret_cast<std::uintptr_t>(pointer) % to == 0;
}

/// Sets the sizes of the column-major GEMM. Returns nullptr, or a message if the descriptors are
/// inconsistent.
const char* shape_problem(const MatmulDesc& d, const Layout& a, const Layout& b, const Layout& c,
                          const Layout& result, Selection& p) {
    p.rows = d.transpose_a == CUBLAS_OP_N ? a.rows : a.columns;
    p.depth = d.transpose_a == CUBLAS_OP_N ? a.columns : a.rows;
    p.columns = d.transpose_b == CUBLAS_OP_N ? b.columns : b.rows;
    if (p.depth != (d.transpose_b == CUBLAS_OP_N ? b.rows : b.columns)) return "factors that do not fit";
    if (p.rows == 0 || p.columns == 0 || p.depth == 0) return "an empty GEMM";
    if (result.rows != p.rows || result.columns != p.columns) return "a result of another shape";
    if (c.type != result.type || c.rows != result.rows || c.columns != result.columns)
        return "C and D that differ";
    for (const Layout* l : {&a, &b, &c, &result})
        if (l->stride < static_cast<std::int64_t>(l->rows)) return "a leading dimension below the rows";
    const bool wide = a.type == CUDA_R_64F;
    if (a.type != b.type) return "factors of two types";
    const bool valid_compute_type =
        wide ? d.compute == CUBLAS_COMPUTE_64F
             : d.compute == CUBLAS_COMPUTE_32F ||
                   (d.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && a.type == CUDA_R_32F);
    if (!valid_compute_type || d.scale != (wide ? CUDA_R_64F : CUDA_R_32F))
        return "a compute or scale type that is not for these factors";
    const bool valid_result_type =
        result.type == a.type || (a.type == CUDA_R_16BF && result.type == CUDA_R_32F);
    return valid_result_type ? nullptr : "a result of a type that these factors do not give";
}

/// Rounds to the 10 mantissa bits of TF32.
float to_tf32(float value) {
    return std::bit_cast<float>((std::bit_cast<std::uint32_t>(value) + 0x1000u) & ~0x1fffu);
}

template <class T, class A>
std::vector<A> converted(const void* data, const Layout& l, bool tf32) {
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

/// Whether an algorithm supports another shape than the one it was selected for. Here: sizes down to half of
/// it that are even, so that callers have to check.
bool supports(const Selection& chosen, const Selection& now) {
    const auto close_enough = [](std::uint64_t created, std::uint64_t size) {
        return size == created || (size < created && 2 * size >= created && size % 2 == 0);
    };
    return chosen.rows == now.rows && close_enough(chosen.columns, now.columns) &&
           close_enough(chosen.depth, now.depth);
}

/// Returns nullptr, or a message if the epilogue is invalid.
const char* epilogue_problem(const MatmulDesc& d, const Layout& a, const Layout& result) {
    const bool known = d.epilogue == CUBLASLT_EPILOGUE_DEFAULT || d.epilogue == CUBLASLT_EPILOGUE_BIAS ||
                       d.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
                       d.epilogue == CUBLASLT_EPILOGUE_BGRADB;
    if (!known) return "an epilogue that is not simulated";
    if (d.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return nullptr;
    if (a.type == CUDA_R_64F) return "an epilogue in f64";
    if (!d.bias) return "an epilogue without its bias pointer";
    if (d.has(CUBLASLT_EPILOGUE_GELU_AUX) &&
        (!d.aux || d.aux_stride % 8 != 0 || d.aux_stride < static_cast<std::int64_t>(result.rows)))
        return "no auxiliary matrix, or one whose leading dimension is not a multiple of 8";
    return nullptr;
}

/// The tanh approximation of GELU.
template <class A>
A gelu(A x) {
    return A(0.5) * x * (1 + std::tanh(A(0.7978845608028654) * (x + A(0.044715) * x * x * x)));
}

template <class In, class Out, class A>
void compute(const MatmulDesc& d, const Selection& p, double alpha, const void* a, const Layout& la,
             const void* b, const Layout& lb, double beta, const void* addend, void* out, const Layout& lo) {
    const bool tf32 = d.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    const std::vector<A> a_values = converted<In, A>(a, la, tf32), b_values = converted<In, A>(b, lb, tf32);
    std::vector<A> sum(lo.columns * static_cast<std::size_t>(lo.stride));
    // A column-major matrix is the transpose of a row-major one, so the factors are swapped.
    maestro::backend::cpu_gemm({.a = b_values.data(),
                                .b = a_values.data(),
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
                                .out = maestro::dtype_of<A>(),
                                .alpha = alpha});
    const Out* const from = static_cast<const Out*>(addend);
    Out* const to = static_cast<Out*>(out);
    for (std::uint64_t column = 0; column < lo.columns; ++column)
        for (std::uint64_t row = 0; row < lo.rows; ++row) {
            const std::size_t at = column * static_cast<std::size_t>(lo.stride) + row;
            A value = sum[at] + (beta == 0 ? A(0) : static_cast<A>(beta) * static_cast<A>(from[at]));
            if (d.has(CUBLASLT_EPILOGUE_BIAS)) value += static_cast<A>(static_cast<const Out*>(d.bias)[row]);
            if (d.has(CUBLASLT_EPILOGUE_GELU_AUX)) {
                static_cast<Out*>(d.aux)[column * static_cast<std::size_t>(d.aux_stride) + row] =
                    static_cast<Out>(value);
                value = gelu(value);
            }
            to[at] = static_cast<Out>(value);
        }
    for (std::uint64_t column = 0; d.has(CUBLASLT_EPILOGUE_BGRADB) && column < p.columns; ++column) {
        A total = 0;
        const auto stride = static_cast<std::size_t>(lb.stride);
        for (std::uint64_t k = 0; k < p.depth; ++k)
            total += b_values[d.transpose_b == CUBLAS_OP_N ? column * stride + k : k * stride + column];
        static_cast<Out*>(d.bias)[column] = static_cast<Out>(total);
    }
}

std::array<std::atomic<std::int64_t>, 3> calls_by_candidate;

}  // namespace

std::int64_t hosted::gemms_by_candidate(int candidate) {
    return calls_by_candidate.at(static_cast<std::size_t>(candidate));
}

namespace {
std::int64_t checks = 0;
}
std::int64_t hosted::algorithm_checks() {
    return checks;
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
    return status == CUBLAS_STATUS_SUCCESS ? "success" : "an invalid value (simulated cuBLASLt)";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* created, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    return make<MatmulDesc>(created, compute, scale);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
    return destroy<MatmulDesc>(description);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t what, const void* value,
                                              std::size_t bytes) {
    MatmulDesc& d = as<MatmulDesc>(description);
    if (what == CUBLASLT_MATMUL_DESC_TRANSA) return set_attribute(d.transpose_a, value, bytes);
    if (what == CUBLASLT_MATMUL_DESC_TRANSB) return set_attribute(d.transpose_b, value, bytes);
    if (what == CUBLASLT_MATMUL_DESC_EPILOGUE) return set_attribute(d.epilogue, value, bytes);
    if (what == CUBLASLT_MATMUL_DESC_BIAS_POINTER) return set_attribute(d.bias, value, bytes);
    if (what == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER) return set_attribute(d.aux, value, bytes);
    if (what == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD) return set_attribute(d.aux_stride, value, bytes);
    return reject("a matmul attribute that is not simulated");
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* created, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t columns, std::int64_t stride) {
    return make<Layout>(created, type, rows, columns, stride);
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t what, const void* value,
                                                std::size_t bytes) {
    Layout& l = as<Layout>(layout);
    if (what == CUBLASLT_MATRIX_LAYOUT_ROWS) return set_attribute(l.rows, value, bytes);
    if (what == CUBLASLT_MATRIX_LAYOUT_COLS) return set_attribute(l.columns, value, bytes);
    return reject("a layout attribute that is not simulated");
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    return destroy<Layout>(layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* created) {
    return make<Preference>(created);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    return destroy<Preference>(preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void* value, std::size_t bytes) {
    Preference& p = as<Preference>(preference);
    switch (what) {
        case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
            return set_attribute(p.workspace, value, bytes);
        case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
            return set_attribute(p.schemes, value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
            return set_attribute(p.alignment_a, value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
            return set_attribute(p.alignment_b, value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
            return set_attribute(p.alignment_c, value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
            return set_attribute(p.alignment_d, value, bytes);
        default:
            return reject("a preference that is not simulated");
    }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int* count) {
    const Preference& p = as<Preference>(preference);
    const auto small = [](auto value) { return static_cast<std::uint16_t>(value); };
    Selection selection{0,
                        0,
                        0,
                        static_cast<std::uint32_t>(p.workspace),
                        small(p.alignment_a),
                        small(p.alignment_b),
                        small(p.alignment_c),
                        small(p.alignment_d),
                        0,
                        small(requested)};
    *count = 0;
    if (as<Layout>(d).type == CUDA_R_16BF && (p.schemes & CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE) != 0)
        return reject("a split-K reduction in bf16 is allowed");
    if (requested < 1) return reject("no algorithm requested");
    const MatmulDesc& desc = as<MatmulDesc>(description);
    if (const char* problem =
            shape_problem(desc, as<Layout>(a), as<Layout>(b), as<Layout>(c), as<Layout>(d), selection))
        return reject(problem);
    if (desc.epilogue != CUBLASLT_EPILOGUE_DEFAULT && as<Layout>(a).type == CUDA_R_64F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (const char* problem = epilogue_problem(desc, as<Layout>(a), as<Layout>(d))) return reject(problem);
    for (; *count < std::min(requested, static_cast<int>(calls_by_candidate.size())); ++*count) {
        cublasLtMatmulHeuristicResult_t& result = results[*count];
        result = {};
        selection.candidate = small(*count);
        std::memcpy(&result.algo, &selection, sizeof selection);
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
    ++checks;
    Selection chosen{}, now{};
    std::memcpy(&chosen, algorithm, sizeof chosen);
    if (const char* problem = shape_problem(as<MatmulDesc>(description), as<Layout>(a), as<Layout>(b),
                                            as<Layout>(c), as<Layout>(d), now))
        return reject(problem);
    *result = {};
    result->algo = *algorithm;
    result->workspaceSize = chosen.workspace;
    return supports(chosen, now) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t layout_a, const void* b,
                              cublasLtMatrixLayout_t layout_b, const void* beta, const void* c,
                              cublasLtMatrixLayout_t layout_c, void* d, cublasLtMatrixLayout_t layout_d,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, std::size_t bytes,
                              cudaStream_t stream) {
    if (!handle || !algorithm) return reject("no handle, or no algorithm");
    const MatmulDesc desc = as<MatmulDesc>(description);
    const Layout la = as<Layout>(layout_a), lb = as<Layout>(layout_b), ld = as<Layout>(layout_d);
    Selection chosen{}, now{};
    std::memcpy(&chosen, algorithm, sizeof chosen);
    if (const char* problem = shape_problem(desc, la, lb, as<Layout>(layout_c), ld, now))
        return reject(problem);
    if (!supports(chosen, now)) return reject("an algorithm that was chosen for another shape");
    if (const char* problem = epilogue_problem(desc, la, ld)) return reject(problem);
    if (desc.bias && desc.epilogue != CUBLASLT_EPILOGUE_DEFAULT && !hosted::is_device(desc.bias))
        return reject("a bias pointer that is not device memory");
    if (desc.has(CUBLASLT_EPILOGUE_GELU_AUX) && (!hosted::is_device(desc.aux) || !aligned(desc.aux, 16)))
        return reject("an auxiliary matrix that is not device memory, or not aligned to 16 bytes");
    if (!aligned(a, chosen.alignment_a) || !aligned(b, chosen.alignment_b) ||
        !aligned(c, chosen.alignment_c) || !aligned(d, chosen.alignment_d))
        return reject("an address that is less aligned than was said when the algorithm was chosen");
    if (bytes < chosen.workspace || !aligned(workspace, 16)) return reject("too small a workspace");
    const auto bytes_of = [](const Layout& l) {
        return ((l.columns - 1) * static_cast<std::uint64_t>(l.stride) + l.rows) * bytes_per_element(l.type);
    };
    if (!hosted::is_device(a, bytes_of(la)) || !hosted::is_device(b, bytes_of(lb)) ||
        !hosted::is_device(d, bytes_of(ld)) || (bytes > 0 && !hosted::is_device(workspace, bytes)))
        return reject("a matrix or workspace that is not device memory");
    const bool wide = desc.scale == CUDA_R_64F;
    const double alpha_value = wide ? *static_cast<const double*>(alpha) : *static_cast<const float*>(alpha);
    const double beta_value = wide ? *static_cast<const double*>(beta) : *static_cast<const float*>(beta);
    if (beta_value != 0 && !hosted::is_device(c)) return reject("an addend that is not device memory");
    ++calls_by_candidate[chosen.candidate];
    const auto work = [=] {
        if (chosen.requested_count > 1 && chosen.candidate != hosted::kFastCandidate)
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
        std::memset(workspace, 0xff,
                    std::min(bytes, std::size_t{1} << 16));  // a GEMM may overwrite its workspace
        if (la.type == CUDA_R_64F)
            compute<double, double, double>(desc, now, alpha_value, a, la, b, lb, beta_value, c, d, ld);
        else if (la.type == CUDA_R_32F)
            compute<float, float, float>(desc, now, alpha_value, a, la, b, lb, beta_value, c, d, ld);
        else if (ld.type == CUDA_R_32F)
            compute<bf16, float, float>(desc, now, alpha_value, a, la, b, lb, beta_value, c, d, ld);
        else
            compute<bf16, bf16, float>(desc, now, alpha_value, a, la, b, lb, beta_value, c, d, ld);
    };
    return hosted::enqueue(stream, work, "a GEMM of cuBLASLt") == cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
