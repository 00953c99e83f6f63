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

#include "backend/cuda/matmul_descriptor.hpp"

namespace maestro::backend {

namespace {

constexpr int kMaxCandidates = 8;             ///< algorithms that autotuning measures
constexpr std::size_t kMostShapes = 1 << 14;  ///< for which a plan is remembered

/// The alignment of an address in bytes: a power of two, at most 64, which is what arenas align to.
std::uint32_t alignment_of(const void* pointer) {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    std::uint32_t alignment = 64;
    while (address % alignment != 0) alignment /= 2;
    return alignment;
}

/// The matrix D of cuBLASLt, which the library writes.
void* output_of(const Backend::Gemm& g, const Backend::Epilogue& e) {
    return e.activated ? e.activated : g.y;
}

/// The auxiliary matrix of an epilogue (the input of GELU), and its bias or bias gradient; null where there
/// is none.
const void* aux_of(const Backend::Gemm& g, const Backend::Epilogue& e) {
    return e.activated ? g.y : nullptr;
}
const void* vector_of(const Backend::Epilogue& e) {
    return e.column_sums ? e.column_sums : e.bias;
}
/// The matrix C of cuBLASLt, which is added to the GEMM; null where none is.
const void* addend_of(const Backend::Gemm& g, const Backend::Epilogue& e) {
    return !g.accumulate ? nullptr : e.addend ? e.addend : output_of(g, e);
}
/// Whether a GEMM adds to what its output holds, so that it gives another result when it runs again.
bool adds_in_place(const Backend::Gemm& g, const Backend::Epilogue& e) {
    return addend_of(g, e) == output_of(g, e);
}
bool has_epilogue(const Backend::Epilogue& e) {
    return e.bias || e.activated || e.column_sums;
}

/// The class of shapes that share an algorithm. The number of activation rows differs from micro-batch to
/// micro-batch, and choosing an algorithm for each number would take too long. Rows are rounded up to three
/// significant binary digits.
Backend::Gemm shape_class_of(Backend::Gemm g) {
    if (g.transpose_a && g.transpose_b)
        return g;  // the number of activation rows is the length of b's rows, too
    std::int64_t& rows = g.transpose_a ? g.k : g.m;
    const auto digits =
        static_cast<int>(std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(rows, 1))));
    const std::int64_t step = std::int64_t{1} << std::max(digits - 3, 0);
    rows = (rows + step - 1) / step * step;
    return g;
}

using Key =
    std::tuple<std::array<std::int64_t, 6>, std::array<bool, 6>, DType, DType, std::array<std::uint32_t, 6>>;

Key key_of(const Backend::Gemm& g, const Backend::Epilogue& e) {
    return {{g.m, g.n, g.k, g.lda, g.ldb, g.ldy},
            {g.transpose_a, g.transpose_b, g.accumulate, e.bias != nullptr, e.activated != nullptr,
             e.column_sums != nullptr},
            g.in,
            g.out,
            {alignment_of(g.a), alignment_of(g.b), alignment_of(output_of(g, e)), alignment_of(aux_of(g, e)),
             alignment_of(vector_of(e)), alignment_of(addend_of(g, e))}};
}

struct Plan {
    MatmulDescriptor descriptor;
    std::optional<cublasLtMatmulAlgo_t> algorithm;  ///< none where the library does not support the GEMM
};

}  // namespace

struct CudaGemm::State {
    State(Stream s, GemmOptions o, std::function<void(const CudaEvent&)> w)
        : stream(s), options(o), wait(std::move(w)) {
        MAESTRO_CUDA_CALL(cublasLtCreate(&handle));
        MAESTRO_CUDA_CALL(cudaMalloc(&workspace, kGemmWorkspace));
        if (!options.autotune) return;
        MAESTRO_CUDA_CALL(cudaMalloc(&trial, kGemmTrial));
        MAESTRO_CUDA_CALL(cudaMemsetAsync(trial, 0, kGemmTrial, stream));  // trials add to it
    }
    ~State() {
        cudaFree(trial);
        cudaFree(workspace);
        if (handle) cublasLtDestroy(handle);
    }
    State(const State&) = delete;
    State& operator=(const State&) = delete;

    /// The plan of the shape's class where its algorithm supports this shape, else a plan for exactly this
    /// shape.
    const Plan& plan_for(const Backend::Gemm& g, const Backend::Epilogue& e);
    /// The plan of `shape`. It is made if there is none; autotuning measures it on the arrays of `g`.
    const Plan& find_or_make_plan(const Backend::Gemm& shape, const Backend::Gemm& g,
                                  const Backend::Epilogue& e);
    std::vector<cublasLtMatmulAlgo_t> heuristic_results(const MatmulDescriptor& descriptor,
                                                        const Backend::Gemm& g, const Backend::Epilogue& e);
    /// Both leave the sizes of `g` in the descriptor.
    bool supports(const MatmulDescriptor& descriptor, const cublasLtMatmulAlgo_t& algorithm,
                  const Backend::Gemm& g) const;
    std::optional<cublasLtMatmulAlgo_t> choose_algorithm(const MatmulDescriptor& descriptor,
                                                         const Backend::Gemm& g, const Backend::Epilogue& e);
    Backend::Gemm trial_of(const Backend::Gemm& g, const Backend::Epilogue& e) const;
    double measure(const MatmulDescriptor& descriptor, const cublasLtMatmulAlgo_t& algorithm,
                   const Backend::Gemm& g, void* target, const void* addend);
    void launch_matmul(const MatmulDescriptor& descriptor, const cublasLtMatmulAlgo_t& algorithm,
                       const Backend::Gemm& g, void* target, const void* addend);

    Stream stream;
    GemmOptions options;
    std::function<void(const CudaEvent&)> wait;
    cublasLtHandle_t handle = nullptr;
    void* workspace = nullptr;
    void* trial = nullptr;  ///< kGemmTrial bytes; null without autotuning
    CudaEvent trial_begin{cudaEventDefault}, trial_end{cudaEventDefault};
    std::map<Key, Plan> plans;
    /// By exact shape: the plan that supports it. To ask the library takes microseconds.
    std::map<Key, const Plan*> plan_of_shape;
};

std::vector<cublasLtMatmulAlgo_t> CudaGemm::State::heuristic_results(const MatmulDescriptor& descriptor,
                                                                     const Backend::Gemm& g,
                                                                     const Backend::Epilogue& e) {
    LibraryHandle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;
    MAESTRO_CUDA_CALL(cublasLtMatmulPreferenceCreate(preference.out()));
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
        MAESTRO_CUDA_CALL(cublasLtMatmulPreferenceSetAttribute(preference.get(), what, &value, sizeof value));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kGemmWorkspace);
    // Split-K may reduce partial sums in the result's type. That would lose precision where it is bf16.
    if (g.out == DType::bf16)
        prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
               static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(g.b));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(g.a));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
           std::min(alignment_of(output_of(g, e)), alignment_of(addend_of(g, e))));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(output_of(g, e)));
    std::array<cublasLtMatmulHeuristicResult_t, kMaxCandidates> found{};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle, descriptor.operation(), descriptor.a_layout(), descriptor.b_layout(), descriptor.c_layout(),
        descriptor.c_layout(), preference.get(), options.autotune ? kMaxCandidates : 1, found.data(), &count);
    // For an unsupported epilogue the library may also report an invalid value.
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_INVALID_VALUE && has_epilogue(e)))
        return {};
    MAESTRO_CUDA_CALL(status);
    std::vector<cublasLtMatmulAlgo_t> algorithms;
    for (int i = 0; i < count; ++i)
        if (found[static_cast<std::size_t>(i)].state == CUBLAS_STATUS_SUCCESS)
            algorithms.push_back(found[static_cast<std::size_t>(i)].algo);
    return algorithms;
}

void CudaGemm::State::launch_matmul(const MatmulDescriptor& descriptor, const cublasLtMatmulAlgo_t& algorithm,
                                    const Backend::Gemm& g, void* target, const void* addend) {
    const double alpha = g.alpha, beta = addend ? 1 : 0;
    const auto alpha_f = static_cast<float>(alpha), beta_f = static_cast<float>(beta);
    const bool wide = g.in == DType::f64;
    const auto scalar = [&](const double& in_f64, const float& in_f32) {
        return wide ? static_cast<const void*>(&in_f64) : &in_f32;
    };
    MAESTRO_CUDA_CALL(cublasLtMatmul(handle, descriptor.operation(), scalar(alpha, alpha_f), g.b,
                                     descriptor.a_layout(), g.a, descriptor.b_layout(), scalar(beta, beta_f),
                                     addend ? addend : target, descriptor.c_layout(), target,
                                     descriptor.c_layout(), &algorithm, workspace, kGemmWorkspace, stream));
}

double CudaGemm::State::measure(const MatmulDescriptor& descriptor, const cublasLtMatmulAlgo_t& algorithm,
                                const Backend::Gemm& g, void* target, const void* addend) {
    constexpr int kRuns = 3;
    launch_matmul(descriptor, algorithm, g, target, addend);  // the first launch may load the kernel
    trial_begin.record(stream);
    for (int i = 0; i < kRuns; ++i) launch_matmul(descriptor, algorithm, g, target, addend);
    trial_end.record(stream);
    wait(trial_end);
    return trial_end.seconds_after(trial_begin) / kRuns;
}

/// The GEMM on which algorithms for `g` are measured. A GEMM that overwrites its result is measured as it is.
/// Each trial of one that adds to its result would change it. Such a GEMM is measured on the memory for
/// trials, with as many rows of the result as fit there, in whole tiles if not all do.
Backend::Gemm CudaGemm::State::trial_of(const Backend::Gemm& g, const Backend::Epilogue& e) const {
    if (!adds_in_place(g, e)) return g;
    constexpr std::int64_t kTileRows = 256;                         // at most
    const std::size_t offset = alignment_of(output_of(g, e)) % 64;  // as aligned as the result
    const auto room = static_cast<std::int64_t>((kGemmTrial - offset) / size_of(g.out)) / g.ldy;
    Backend::Gemm measured = g;
    measured.y = static_cast<std::byte*>(trial) + offset;
    if (room < g.m) measured.m = room < kTileRows ? room : room / kTileRows * kTileRows;
    return measured;
}

/// The library's first heuristic result, or with autotuning the fastest of those that support the trial.
std::optional<cublasLtMatmulAlgo_t> CudaGemm::State::choose_algorithm(const MatmulDescriptor& descriptor,
                                                                      const Backend::Gemm& g,
                                                                      const Backend::Epilogue& e) {
    const auto algorithms = heuristic_results(descriptor, g, e);
    if (algorithms.empty()) return {};
    if (algorithms.size() == 1) return algorithms.front();
    const Backend::Gemm measured = trial_of(g, e);
    if (measured.m == 0) return algorithms.front();  // a row of 64 MiB
    const bool in_place = adds_in_place(g, e);
    void* const target = in_place ? measured.y : output_of(g, e);
    const void* const addend = in_place ? target : addend_of(g, e);
    double best_s = std::numeric_limits<double>::infinity();
    cublasLtMatmulAlgo_t best = algorithms.front();
    for (const cublasLtMatmulAlgo_t& algorithm : algorithms) {
        if (measured.m != g.m && !supports(descriptor, algorithm, measured)) continue;
        const double s = measure(descriptor, algorithm, measured, target, addend);
        if (s < best_s) {
            best_s = s;
            best = algorithm;
        }
    }
    return best;
}

bool CudaGemm::State::supports(const MatmulDescriptor& descriptor, const cublasLtMatmulAlgo_t& algorithm,
                               const Backend::Gemm& g) const {
    descriptor.set_sizes(g);
    cublasLtMatmulHeuristicResult_t found{};
    return cublasLtMatmulAlgoCheck(handle, descriptor.operation(), descriptor.a_layout(),
                                   descriptor.b_layout(), descriptor.c_layout(), descriptor.c_layout(),
                                   &algorithm, &found) == CUBLAS_STATUS_SUCCESS &&
           found.workspaceSize <= kGemmWorkspace;
}

const Plan& CudaGemm::State::find_or_make_plan(const Backend::Gemm& shape, const Backend::Gemm& g,
                                               const Backend::Epilogue& e) {
    const Key key = key_of(shape, e);
    auto entry = plans.find(key);
    if (entry == plans.end()) {
        MatmulDescriptor descriptor(shape, e, options.tf32);
        std::optional<cublasLtMatmulAlgo_t> algorithm;
        if (options.autotune) {
            descriptor.set_sizes(g);  // the arrays of `g` may be too small for the largest shape of the class
            algorithm = choose_algorithm(descriptor, g, e);
        } else {
            algorithm = choose_algorithm(descriptor, shape, e);
        }
        entry = plans.emplace(key, Plan{std::move(descriptor), algorithm}).first;
    }
    return entry->second;
}

const Plan& CudaGemm::State::plan_for(const Backend::Gemm& g, const Backend::Epilogue& e) {
    const Key key = key_of(g, e);
    auto known = plan_of_shape.find(key);
    if (known == plan_of_shape.end()) {
        // Micro-batches have ever other numbers of rows: what is remembered must not grow without bound.
        if (plan_of_shape.size() >= kMostShapes) plan_of_shape.clear();
        const Plan* plan = &find_or_make_plan(shape_class_of(g), g, e);
        if (plan->algorithm && !supports(plan->descriptor, *plan->algorithm, g))
            plan = &find_or_make_plan(g, g, e);
        known = plan_of_shape.emplace(key, plan).first;
    }
    known->second->descriptor.set_sizes(g);
    return *known->second;
}

CudaGemm::CudaGemm(Stream stream, GemmOptions options, std::function<void(const CudaEvent&)> wait)
    : state_(std::make_unique<State>(stream, options, std::move(wait))) {}
CudaGemm::~CudaGemm() = default;

bool CudaGemm::run(const Backend::Gemm& g, const Backend::Epilogue& epilogue) {
    // Requirements of the library for epilogues: row strides in elements, addresses in bytes.
    constexpr std::int64_t kAuxStrideUnit = 8;
    constexpr std::uint32_t kMinAlignment = 16;
    if (epilogue.activated && (g.ldy % kAuxStrideUnit != 0 || alignment_of(g.y) < kMinAlignment))
        return false;
    if (alignment_of(vector_of(epilogue)) < kMinAlignment) return false;
    const Plan& plan = state_->plan_for(g, epilogue);
    MAESTRO_CHECK(plan.algorithm || has_epilogue(epilogue),
                  "cuBLASLt does not support a GEMM of {} x {} x {}, {} to {}", g.m, g.n, g.k, name_of(g.in),
                  name_of(g.out));
    if (!plan.algorithm) return false;
    plan.descriptor.set_epilogue_pointers(g, epilogue);
    state_->launch_matmul(plan.descriptor, *plan.algorithm, g, output_of(g, epilogue),
                          addend_of(g, epilogue));
    return true;
}

std::string CudaGemm::describe() const {
    const auto version = cublasLtGetVersion();
    return fmt::format("cuBLASLt {}.{}.{}{}{}", version / 10000, version / 100 % 100, version % 100,
                       state_->options.tf32 ? ", fp32 GEMMs in TF32" : "",
                       state_->options.autotune ? ", algorithms by benchmark" : "");
}

}  // namespace maestro::backend
