// The real cuBLASLt: it is loaded at the first call and has all functions that Maestro calls.
#include <cublasLt.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

namespace {

bool is_loaded() {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);)
        if (line.find("libcublasLt") != std::string::npos) return true;
    return false;
}

TEST(CublasLt, IsLoadedAtTheFirstCallAndHasAllFunctions) {
    EXPECT_FALSE(is_loaded());
    EXPECT_GE(cublasLtGetVersion(), CUBLAS_VER_MAJOR * 10000U);
    EXPECT_TRUE(is_loaded());
    EXPECT_STREQ(cublasLtGetStatusString(CUBLAS_STATUS_SUCCESS), "success");

    cublasLtMatmulDesc_t operation = nullptr;
    ASSERT_EQ(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
    const cublasOperation_t transpose = CUBLAS_OP_T;
    EXPECT_EQ(
        cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose),
        CUBLAS_STATUS_SUCCESS);
    cublasLtMatrixLayout_t layout = nullptr;
    ASSERT_EQ(cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, 4, 4, 4), CUBLAS_STATUS_SUCCESS);
    const cublasLtOrder_t order = CUBLASLT_ORDER_ROW;
    EXPECT_EQ(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order),
              CUBLAS_STATUS_SUCCESS);
    cublasLtMatmulPreference_t preference = nullptr;
    ASSERT_EQ(cublasLtMatmulPreferenceCreate(&preference), CUBLAS_STATUS_SUCCESS);
    const std::size_t workspace = 1 << 20;
    EXPECT_EQ(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                   &workspace, sizeof workspace),
              CUBLAS_STATUS_SUCCESS);

    // A handle needs a driver. Without one these return an error.
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    EXPECT_NE(cublasLtMatmulAlgoGetHeuristic(nullptr, operation, layout, layout, layout, layout, preference,
                                             1, &result, &found),
              CUBLAS_STATUS_SUCCESS);
    EXPECT_NE(
        cublasLtMatmulAlgoCheck(nullptr, operation, layout, layout, layout, layout, &result.algo, &result),
        CUBLAS_STATUS_SUCCESS);
    const float one = 1;
    EXPECT_NE(cublasLtMatmul(nullptr, operation, &one, nullptr, layout, nullptr, layout, &one, nullptr,
                             layout, nullptr, layout, nullptr, nullptr, 0, nullptr),
              CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublasLtMatmulPreferenceDestroy(preference), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublasLtMatrixLayoutDestroy(layout), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublasLtMatmulDescDestroy(operation), CUBLAS_STATUS_SUCCESS);
    cublasLtHandle_t handle = nullptr;
    if (cublasLtCreate(&handle) == CUBLAS_STATUS_SUCCESS) {
        EXPECT_EQ(cublasLtDestroy(handle), CUBLAS_STATUS_SUCCESS);
    }
}

}  // namespace
