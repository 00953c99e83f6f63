// The CPU backend of gpu_check. GEMMs are loops, so that neither oneDNN nor OpenBLAS is needed. They
// accumulate in double, which makes them an independent reference.
#include <omp.h>

#include "backend/cpu/cpu_gemm.hpp"
#include "backend/cpu/host_memory.hpp"

namespace maestro::backend {

namespace {

template <class In, class Out>
void gemm_loops(const Backend::Gemm& g) {
    const auto *a = static_cast<const In*>(g.a), *b = static_cast<const In*>(g.b);
    auto* y = static_cast<Out*>(g.y);
    const auto as_double = [](auto value) { return static_cast<double>(static_cast<Accumulate<In>>(value)); };
#pragma omp parallel for schedule(static) if (g.m * g.n * g.k > 1 << 16)
    for (std::int64_t row = 0; row < g.m; ++row)
        for (std::int64_t column = 0; column < g.n; ++column) {
            double sum = 0;
            for (std::int64_t i = 0; i < g.k; ++i)
                sum += as_double(a[g.transpose_a ? i * g.lda + row : row * g.lda + i]) *
                       as_double(b[g.transpose_b ? column * g.ldb + i : i * g.ldb + column]);
            Out& to = y[row * g.ldy + column];
            const double before = g.accumulate ? static_cast<double>(static_cast<Accumulate<Out>>(to)) : 0;
            to = static_cast<Out>(static_cast<Accumulate<Out>>(before + g.alpha * sum));
        }
}

class PlainCpu final : public HostMemory {
public:
    explicit PlainCpu(int threads) : threads_(threads) { omp_set_num_threads(threads); }
    std::string describe() const override { return "cpu: plain loops"; }
    bool computes() const override { return true; }
    int threads() const override { return threads_; }
    void gemm(const Gemm& g) override {
        count(work_of(g));
        run(g);
    }
    void grouped_gemm(const GroupedGemm& g) override {
        count(work_of(g));
        for (std::size_t group = 0; group < g.groups(); ++group) run(g.of_group(group));
    }

private:
    static void run(const Gemm& g) {
        if (g.in == DType::bf16 && g.out == DType::bf16)
            gemm_loops<bf16, bf16>(g);
        else if (g.in == DType::bf16)
            gemm_loops<bf16, float>(g);
        else
            cpu_gemm(g);
    }
    int threads_;
};

}  // namespace

void cpu_gemm(const Backend::Gemm& g) {
    MAESTRO_CHECK(g.in == g.out, "GEMM of {} into {}", name_of(g.in), name_of(g.out));
    if (g.in == DType::f32)
        gemm_loops<float, float>(g);
    else
        gemm_loops<double, double>(g);
}

std::unique_ptr<Backend> make_cpu(int threads) {
    return std::make_unique<PlainCpu>(threads);
}

}  // namespace maestro::backend
