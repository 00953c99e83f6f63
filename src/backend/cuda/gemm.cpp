#include "backend/cuda/gemm.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "backend/cuda/product.hpp"

namespace maestro::backend {

namespace {

constexpr int kTried = 8;  ///< proposals that are measured

/// The largest power of two that divides an address, up to what every arena grants: what a kernel may count
/// on.
std::uint32_t alignment_of(const void* pointer) {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    std::uint32_t alignment = 64;
    while (address % alignment != 0) alignment /= 2;
    return alignment;
}

/// Where the library writes D.
void* written(const Backend::Gemm& g, const Backend::Epilogue& e) {
    return e.activated ? e.activated : g.y;
}

/// What an epilogue reads or writes beside y, and its vector; null where there is none.
const void* beside(const Backend::Gemm& g, const Backend::Epilogue& e) {
    return e.activated ? g.y : nullptr;
}
const void* vector_of(const Backend::Epilogue& e) {
    return e.column_sums ? e.column_sums : e.bias;
}
bool plain(const Backend::Epilogue& e) {
    return !e.bias && !e.activated && !e.column_sums;
}

/// How many rows of activations there are differs from micro-batch to micro-batch: up to the next number
/// with three binary digits they are one class.
Backend::Gemm of_class(Backend::Gemm g) {
    if (g.transpose_a && g.transpose_b) return g;  // b's rows are as long as there are rows of a
    std::int64_t& rows = g.transpose_a ? g.k : g.m;
    const auto digits =
        static_cast<int>(std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(rows, 1))));
    const std::int64_t step = std::int64_t{1} << std::max(digits - 3, 0);
    rows = (rows + step - 1) / step * step;
    return g;
}

using Key =
    std::tuple<std::array<std::int64_t, 6>, std::array<bool, 6>, DType, DType, std::array<std::uint32_t, 5>>;

Key key_of(const Backend::Gemm& g, const Backend::Epilogue& e) {
    return {{g.m, g.n, g.k, g.lda, g.ldb, g.ldy},
            {g.transpose_a, g.transpose_b, g.accumulate, e.bias != nullptr, e.activated != nullptr,
             e.column_sums != nullptr},
            g.in,
            g.out,
            {alignment_of(g.a), alignment_of(g.b), alignment_of(written(g, e)), alignment_of(beside(g, e)),
             alignment_of(vector_of(e))}};
}

struct Plan {
    Product product;
    std::optional<cublasLtMatmulAlgo_t> algorithm;  ///< none: the library has no such product
};

}  // namespace

struct CudaGemm::State {
    State(Stream s, GemmOptions o, std::function<void(const CudaEvent&)> w)
        : stream(s), options(o), wait(std::move(w)) {
        MAESTRO_CUDA_CALL(cublasLtCreate(&handle));
        MAESTRO_CUDA_CALL(cudaMalloc(&workspace, kProductWorkspace));
    }
    ~State() {
        cudaFree(workspace);
        if (handle) cublasLtDestroy(handle);
    }
    State(const State&) = delete;
    State& operator=(const State&) = delete;

    /// The plan of a shape, for its class where its algorithm does for all of that, else for itself.
    const Plan& plan_for(const Backend::Gemm& g, const Backend::Epilogue& e);
    const Plan& plan_of(const Backend::Gemm& shape, const Backend::Gemm& g, const Backend::Epilogue& e);
    std::vector<cublasLtMatmulAlgo_t> proposals(const Product& product, const Backend::Gemm& g,
                                                const Backend::Epilogue& e);
    bool does_for(const Plan& plan, const Backend::Gemm& g) const;
    std::optional<cublasLtMatmulAlgo_t> choose(const Product& product, const Backend::Gemm& g,
                                               const Backend::Epilogue& e);
    double seconds_of(const Product& product, const cublasLtMatmulAlgo_t& algorithm, const Backend::Gemm& g,
                      void* target);
    void multiply(const Product& product, const cublasLtMatmulAlgo_t& algorithm, const Backend::Gemm& g,
                  void* target, bool accumulate);

    Stream stream;
    GemmOptions options;
    std::function<void(const CudaEvent&)> wait;
    cublasLtHandle_t handle = nullptr;
    void* workspace = nullptr;
    CudaEvent begun{cudaEventDefault}, ended{cudaEventDefault};
    std::map<Key, Plan> plans;
};

std::vector<cublasLtMatmulAlgo_t> CudaGemm::State::proposals(const Product& product, const Backend::Gemm& g,
                                                             const Backend::Epilogue& e) {
    Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;
    MAESTRO_CUDA_CALL(cublasLtMatmulPreferenceCreate(preference.to_make()));
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
        MAESTRO_CUDA_CALL(cublasLtMatmulPreferenceSetAttribute(preference.get(), what, &value, sizeof value));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kProductWorkspace);
    // Parts of a long sum may be added up in the result's type: not where that is bf16.
    if (g.out == DType::bf16)
        prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
               static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(g.b));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(g.a));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(written(g, e)));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(written(g, e)));
    std::array<cublasLtMatmulHeuristicResult_t, kTried> found{};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle, product.description(), product.first(), product.second(), product.result(), product.result(),
        preference.get(), options.autotune ? kTried : 1, found.data(), &count);
    // What it has no epilogue for it may also call a wrong description.
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_INVALID_VALUE && !plain(e)))
        return {};
    MAESTRO_CUDA_CALL(status);
    std::vector<cublasLtMatmulAlgo_t> algorithms;
    for (int i = 0; i < count; ++i)
        if (found[static_cast<std::size_t>(i)].state == CUBLAS_STATUS_SUCCESS)
            algorithms.push_back(found[static_cast<std::size_t>(i)].algo);
    return algorithms;
}

void CudaGemm::State::multiply(const Product& product, const cublasLtMatmulAlgo_t& algorithm,
                               const Backend::Gemm& g, void* target, bool accumulate) {
    const double one = 1, zero = 0;
    const float one_f = 1, zero_f = 0;
    const bool wide = g.in == DType::f64;
    const void* const alpha = wide ? static_cast<const void*>(&one) : &one_f;
    const void* const beta = accumulate ? alpha : wide ? static_cast<const void*>(&zero) : &zero_f;
    MAESTRO_CUDA_CALL(cublasLtMatmul(handle, product.description(), alpha, g.b, product.first(), g.a,
                                     product.second(), beta, target, product.result(), target,
                                     product.result(), &algorithm, workspace, kProductWorkspace, stream));
}

double CudaGemm::State::seconds_of(const Product& product, const cublasLtMatmulAlgo_t& algorithm,
                                   const Backend::Gemm& g, void* target) {
    constexpr int kRuns = 3;
    multiply(product, algorithm, g, target, false);  // the first may load code
    begun.record(stream);
    for (int i = 0; i < kRuns; ++i) multiply(product, algorithm, g, target, false);
    ended.record(stream);
    wait(ended);
    return ended.seconds_after(begun) / kRuns;
}

/// The first proposal, or the fastest. What is summed up in place is tried out beside it.
std::optional<cublasLtMatmulAlgo_t> CudaGemm::State::choose(const Product& product, const Backend::Gemm& g,
                                                            const Backend::Epilogue& e) {
    const auto algorithms = proposals(product, g, e);
    if (algorithms.empty()) return {};
    if (algorithms.size() == 1) return algorithms.front();
    void* target = written(g, e);
    void* trial = nullptr;
    if (g.accumulate) {
        const auto bytes = static_cast<std::size_t>(g.m * g.ldy) * size_of(g.out) + 256;
        if (cudaMalloc(&trial, bytes) != cudaSuccess) {
            cudaGetLastError();  // or the next call would report it again
            return algorithms.front();
        }
        // As aligned as what it stands for.
        target = static_cast<std::byte*>(trial) + alignment_of(written(g, e)) % 64;
    }
    double best_s = std::numeric_limits<double>::infinity();
    std::optional<cublasLtMatmulAlgo_t> best;
    for (const cublasLtMatmulAlgo_t& algorithm : algorithms)
        if (const double s = seconds_of(product, algorithm, g, target); s < best_s) {
            best_s = s;
            best = algorithm;
        }
    // Waits for other streams as well, without a deadline: a rank that does not come there is the watchdog's.
    if (trial) MAESTRO_CUDA_CALL(cudaFree(trial));
    return best;
}

bool CudaGemm::State::does_for(const Plan& plan, const Backend::Gemm& g) const {
    plan.product.resize(g);
    cublasLtMatmulHeuristicResult_t found{};
    return !plan.algorithm ||
           (cublasLtMatmulAlgoCheck(handle, plan.product.description(), plan.product.first(),
                                    plan.product.second(), plan.product.result(), plan.product.result(),
                                    &*plan.algorithm, &found) == CUBLAS_STATUS_SUCCESS &&
            found.workspaceSize <= kProductWorkspace);
}

const Plan& CudaGemm::State::plan_of(const Backend::Gemm& shape, const Backend::Gemm& g,
                                     const Backend::Epilogue& e) {
    const Key key = key_of(shape, e);
    auto at = plans.find(key);
    if (at == plans.end()) {
        Product product(shape, e, options.tf32);
        std::optional<cublasLtMatmulAlgo_t> algorithm;
        if (options.autotune) {
            product.resize(g);  // of the class there may be less memory than its largest would take
            algorithm = choose(product, g, e);
        } else {
            algorithm = choose(product, shape, e);
        }
        at = plans.emplace(key, Plan{std::move(product), algorithm}).first;
    }
    return at->second;
}

const Plan& CudaGemm::State::plan_for(const Backend::Gemm& g, const Backend::Epilogue& e) {
    const Plan& shared = plan_of(of_class(g), g, e);
    if (does_for(shared, g)) return shared;
    const Plan& own = plan_of(g, g, e);
    own.product.resize(g);
    return own;
}

CudaGemm::CudaGemm(Stream stream, GemmOptions options, std::function<void(const CudaEvent&)> wait)
    : state_(std::make_unique<State>(stream, options, std::move(wait))) {}
CudaGemm::~CudaGemm() = default;

bool CudaGemm::run(const Backend::Gemm& g, const Backend::Epilogue& epilogue) {
    // What the library asks of rows beside y, in elements, and of places, in bytes.
    constexpr std::int64_t kRowUnit = 8;
    constexpr std::uint32_t kLeast = 16;
    if (epilogue.activated && (g.ldy % kRowUnit != 0 || alignment_of(g.y) < kLeast)) return false;
    if (alignment_of(vector_of(epilogue)) < kLeast) return false;
    const Plan& plan = state_->plan_for(g, epilogue);
    MAESTRO_CHECK(plan.algorithm || !plain(epilogue), "cuBLASLt knows no product of {} x {} x {}, {} to {}",
                  g.m, g.n, g.k, name_of(g.in), name_of(g.out));
    if (!plan.algorithm) return false;
    plan.product.point(g, epilogue);
    state_->multiply(plan.product, *plan.algorithm, g, written(g, epilogue), g.accumulate);
    return true;
}

std::string CudaGemm::describe() const {
    const auto version = cublasLtGetVersion();
    return fmt::format("cuBLASLt {}.{}.{}{}{}", version / 10000, version / 100 % 100, version % 100,
                       state_->options.tf32 ? ", fp32 by tf32" : "",
                       state_->options.autotune ? ", algorithms by measurement" : "");
}

}  // namespace maestro::backend
