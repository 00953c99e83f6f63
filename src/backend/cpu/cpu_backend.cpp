#include <cblas.h>
#include <fmt/format.h>
#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "backend/cpu/bf16_gemm.hpp"
#include "backend/cpu/cpu_gemm.hpp"
#include "backend/cpu/grouped_gemm.hpp"
#include "backend/cpu/host_memory.hpp"

namespace maestro::backend {

namespace {

#if defined(__x86_64__)
constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x40;  // of the MXCSR register
#endif

/// Makes all threads of the rank treat denormal numbers (below 1e-38) as zero. Arithmetic with them takes a
/// hundred times longer, and softmax makes many of them.
void flush_denormals() {
#if defined(__x86_64__)
#pragma omp parallel
    _mm_setcsr(_mm_getcsr() | kFlushToZero | kDenormalsAreZero);
#endif
}

class Cpu final : public HostMemory {
public:
    explicit Cpu(int threads) : threads_(threads), bf16_(make_bf16_native()), grouped_(threads) {
        if (!bf16_) bf16_ = make_bf16_panels();
        MAESTRO_CHECK(threads >= 1, "{} threads", threads);
        omp_set_num_threads(threads);
        flush_denormals();
        openblas_set_num_threads(1);  // for f64 GEMMs, many of which run within parallel loops
    }
    std::string describe() const override {
        const dnnl_version_t* v = dnnl_version();
        return fmt::format("cpu: oneDNN {}.{}.{} (built with {}.{}.{}), {}, {} thread{} per rank, bf16 by {}",
                           v->major, v->minor, v->patch, DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR,
                           DNNL_VERSION_PATCH, openblas_get_config(), threads_, threads_ == 1 ? "" : "s",
                           bf16_->describe());
    }
    bool computes() const override { return true; }
    int threads() const override { return threads_; }
    void gemm(const Gemm& g) override {
        count(work_of(g));
        if (g.in == DType::bf16)
            bf16_->run(g);
        else
            cpu_gemm(g);
    }
    void grouped_gemm(const GroupedGemm& g) override {
        count(work_of(g));
        grouped_.run(g);
    }

private:
    int threads_;
    std::unique_ptr<Bf16Gemm> bf16_;
    CpuGroupedGemm grouped_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu(int threads) {
    return std::make_unique<Cpu>(threads);
}

}  // namespace maestro::backend
