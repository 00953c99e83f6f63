#include "backend/cuda_gemm.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

#include "backend/cuda_check.hpp"

namespace maestro::backend {

namespace {

constexpr std::size_t kWorkspace = std::size_t{32} << 20;  ///< bytes, as much as cuBLAS takes on Hopper

cudaDataType_t type_of(DType type) {
    switch (type) {
        case DType::f32:
            return CUDA_R_32F;
        case DType::bf16:
            return CUDA_R_16BF;
        case DType::f64:
            return CUDA_R_64F;
        default:
            MAESTRO_CHECK(false, "no products of {}", name_of(type));
    }
}

/// The largest power of two up to 256 that divides an address: what a kernel may count on.
std::uint32_t alignment_of(const void* pointer) {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    std::uint32_t alignment = 256;
    while (address % alignment != 0) alignment /= 2;
    return alignment;
}

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
using Description = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

/// cuBLASLt's matrices are column-major. What is row-major here is its transpose there, so y^T = b^T a^T is
/// asked for: b comes first.
struct Plan {
    Description product;
    Layout first, second, result;
    cublasLtMatmulAlgo_t algorithm{};
};

Layout layout(DType type, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
    Layout made;
    MAESTRO_CUDA_CALL(cublasLtMatrixLayoutCreate(made.to_make(), type_of(type),
                                                 static_cast<std::uint64_t>(rows),
                                                 static_cast<std::uint64_t>(columns), stride));
    return made;
}

using Key =
    std::tuple<std::array<std::int64_t, 6>, std::array<bool, 3>, DType, DType, std::array<std::uint32_t, 3>>;

Key key_of(const Backend::Gemm& g) {
    return {{g.m, g.n, g.k, g.lda, g.ldb, g.ldy},
            {g.transpose_a, g.transpose_b, g.accumulate},
            g.in,
            g.out,
            {alignment_of(g.a), alignment_of(g.b), alignment_of(g.y)}};
}

Plan make_plan(cublasLtHandle_t handle, const Backend::Gemm& g) {
    Plan plan;
    const bool wide = g.in == DType::f64;
    MAESTRO_CUDA_CALL(cublasLtMatmulDescCreate(plan.product.to_make(),
                                               wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                               wide ? CUDA_R_64F : CUDA_R_32F));
    const auto set = [&](cublasLtMatmulDescAttributes_t what, const auto& value) {
        MAESTRO_CUDA_CALL(cublasLtMatmulDescSetAttribute(plan.product.get(), what, &value, sizeof value));
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, g.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, g.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    plan.first = g.transpose_b ? layout(g.in, g.k, g.n, g.ldb) : layout(g.in, g.n, g.k, g.ldb);
    plan.second = g.transpose_a ? layout(g.in, g.m, g.k, g.lda) : layout(g.in, g.k, g.m, g.lda);
    plan.result = layout(g.out, g.n, g.m, g.ldy);
    Preference preference;
    MAESTRO_CUDA_CALL(cublasLtMatmulPreferenceCreate(preference.to_make()));
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
        MAESTRO_CUDA_CALL(cublasLtMatmulPreferenceSetAttribute(preference.get(), what, &value, sizeof value));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(g.b));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(g.a));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(g.y));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(g.y));
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    MAESTRO_CUDA_CALL(cublasLtMatmulAlgoGetHeuristic(handle, plan.product.get(), plan.first.get(),
                                                     plan.second.get(), plan.result.get(), plan.result.get(),
                                                     preference.get(), 1, &found, &count));
    MAESTRO_CHECK(count > 0, "cuBLASLt knows no product of {} x {} x {}, {} to {}", g.m, g.n, g.k,
                  name_of(g.in), name_of(g.out));
    plan.algorithm = found.algo;
    return plan;
}

}  // namespace

struct CudaGemm::State {
    explicit State(Stream s) : stream(s) {
        MAESTRO_CUDA_CALL(cublasLtCreate(&handle));
        MAESTRO_CUDA_CALL(cudaMalloc(&workspace, kWorkspace));
    }
    ~State() {
        cudaFree(workspace);
        if (handle) cublasLtDestroy(handle);
    }
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    Stream stream;
    cublasLtHandle_t handle = nullptr;
    void* workspace = nullptr;
    std::map<Key, Plan> plans;
};

CudaGemm::CudaGemm(Stream stream) : state_(std::make_unique<State>(stream)) {}
CudaGemm::~CudaGemm() = default;

void CudaGemm::run(const Backend::Gemm& g) {
    auto at = state_->plans.find(key_of(g));
    if (at == state_->plans.end()) at = state_->plans.emplace(key_of(g), make_plan(state_->handle, g)).first;
    const Plan& plan = at->second;
    const double one = 1, zero = 0;
    const float one_f = 1, zero_f = 0;
    const bool wide = g.in == DType::f64;
    const void* alpha = wide ? static_cast<const void*>(&one) : &one_f;
    const void* beta = g.accumulate ? alpha : wide ? static_cast<const void*>(&zero) : &zero_f;
    MAESTRO_CUDA_CALL(cublasLtMatmul(state_->handle, plan.product.get(), alpha, g.b, plan.first.get(), g.a,
                                     plan.second.get(), beta, g.y, plan.result.get(), g.y, plan.result.get(),
                                     &plan.algorithm, state_->workspace, kWorkspace, state_->stream));
}

std::string CudaGemm::describe() const {
    const auto version = cublasLtGetVersion();
    return fmt::format("cuBLASLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace maestro::backend
