// cuBLASLt, loaded when the first GPU is opened. A linked library would cost every process a tenth of a
// second and memory for relocated pages, also where it computes on the CPU. The functions have the library's
// names, so that callers use them as if it were linked.
#include <cublasLt.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include "base/error.hpp"

namespace {

/// Null where the library is not installed.
void* library() {
    static void* const loaded =
        dlopen(fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR).c_str(), RTLD_NOW | RTLD_LOCAL);
    return loaded;
}

/// The library's function of that name. Throws where it has none.
template <class Function>
Function* find(const char* name) {
    void* const found = library() ? dlsym(library(), name) : nullptr;
    if (!found)
        throw maestro::Error(maestro::ExitCode::broken_invariant,
                             fmt::format("libcublasLt.so.{} has no {}", CUBLAS_VER_MAJOR, name));
    return reinterpret_cast<Function*>(found);
}

}  // namespace

#define MAESTRO_FORWARD(result, name, parameters, arguments)                      \
    result CUBLASWINAPI name parameters {                                         \
        static const auto function = find<result CUBLASWINAPI parameters>(#name); \
        return function arguments;                                                \
    }

extern "C" {

/// 0 where the library is not installed.
size_t CUBLASWINAPI cublasLtGetVersion() {
    return library() ? find<size_t CUBLASWINAPI()>("cublasLtGetVersion")() : 0;
}

MAESTRO_FORWARD(const char*, cublasLtGetStatusString, (cublasStatus_t status), (status))
MAESTRO_FORWARD(cublasStatus_t, cublasLtCreate, (cublasLtHandle_t * handle), (handle))
MAESTRO_FORWARD(cublasStatus_t, cublasLtDestroy, (cublasLtHandle_t handle), (handle))
MAESTRO_FORWARD(cublasStatus_t, cublasLtMatmulDescCreate,
                (cublasLtMatmulDesc_t * operation, cublasComputeType_t compute, cudaDataType_t scale),
                (operation, compute, scale))
MAESTRO_FORWARD(cublasStatus_t, cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t operation), (operation))
MAESTRO_FORWARD(cublasStatus_t, cublasLtMatmulDescSetAttribute,
                (cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, const void* value,
                 size_t bytes),
                (operation, attribute, value, bytes))
MAESTRO_FORWARD(cublasStatus_t, cublasLtMatrixLayoutCreate,
                (cublasLtMatrixLayout_t * layout, cudaDataType type, uint64_t rows, uint64_t columns,
                 int64_t leading),
                (layout, type, rows, columns, leading))
MAESTRO_FORWARD(cublasStatus_t, cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t layout), (layout))
MAESTRO_FORWARD(cublasStatus_t, cublasLtMatrixLayoutSetAttribute,
                (cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                 size_t bytes),
                (layout, attribute, value, bytes))
MAESTRO_FORWARD(cublasStatus_t, cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t * preference),
                (preference))
MAESTRO_FORWARD(cublasStatus_t, cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t preference),
                (preference))
MAESTRO_FORWARD(cublasStatus_t, cublasLtMatmulPreferenceSetAttribute,
                (cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
                 const void* value, size_t bytes),
                (preference, attribute, value, bytes))
MAESTRO_FORWARD(cublasStatus_t, cublasLtMatmulAlgoGetHeuristic,
                (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                 cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                 cublasLtMatmulPreference_t preference, int wanted, cublasLtMatmulHeuristicResult_t* results,
                 int* found),
                (handle, operation, a, b, c, d, preference, wanted, results, found))
MAESTRO_FORWARD(cublasStatus_t, cublasLtMatmulAlgoCheck,
                (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                 cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                 const cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulHeuristicResult_t* result),
                (handle, operation, a, b, c, d, algorithm, result))
MAESTRO_FORWARD(cublasStatus_t, cublasLtMatmul,
                (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
                 cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                 const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                 cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                 size_t bytes, cudaStream_t stream),
                (handle, operation, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,
                 algorithm, workspace, bytes, stream))

}  // extern "C"
