#include <algorithm>
#include <cmath>
#include <utility>

#include "backend/backend.hpp"

namespace maestro::backend {

namespace {

class Meta final : public Backend {
public:
    Meta(DeviceRates rates, Traits traits) : rates_(std::move(rates)), traits_(traits) {}
    std::string describe() const override { return "meta: counts operations, computes nothing"; }
    bool computes() const override { return false; }
    int threads() const override { return traits_.threads; }
    void* allocate(std::size_t) override { return reinterpret_cast<void*>(64); }
    void release(void*) noexcept override {}
    bool shares_memory() const override { return traits_.shares_memory; }
    void upload(const void*, const Tensor&) override {}
    void download(const Tensor&, void*) override {}
    std::unique_ptr<DeviceToHostReader> read_to_host(std::vector<Tensor>) override {
        return read_in_place({});
    }
    void gemm(const Gemm& g) override { count(work_of(g)); }
    void grouped_gemm(const GroupedGemm& g) override { count(work_of(g)); }
    bool gemm_with(const Gemm& g, const Epilogue& epilogue) override {
        // What a GPU does for every shape. The CPU has no epilogues.
        if (traits_.shares_memory || epilogue.addend == nullptr) return false;
        count(work_of(g));
        return true;
    }
    AttentionSupport attention_support() const override { return traits_.attention; }

protected:
    double seconds_of(const Work& work) const override { return rates_.seconds(work); }
    double seconds_of(const HostWork& work) const override { return rates_.seconds(work); }

private:
    DeviceRates rates_;
    Traits traits_;
};

}  // namespace

Work Backend::work_of(const Gemm& g) {
    return {2.0 * static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k),
            static_cast<double>(g.m * g.k + g.k * g.n) * static_cast<double>(size_of(g.in)) +
                static_cast<double>(g.m * g.n) * static_cast<double>(size_of(g.out)),
            static_cast<double>(std::min({g.m, g.n, g.k})), g.in};
}

double DeviceRates::seconds(const Work& work) const {
    double rate = element_flops;
    if (work.side > 0 && !gemm_rates.empty()) {
        const auto of = [&](const GemmRate& p) {
            return work.dtype == DType::bf16 ? p.bf16_flops : p.f32_flops;
        };
        const auto above = std::lower_bound(gemm_rates.begin(), gemm_rates.end(), work.side,
                                            [](const GemmRate& p, double side) { return p.side < side; });
        if (above == gemm_rates.begin()) {
            rate = of(*above) * work.side / above->side;  // narrower than measured: proportionally slower
        } else if (above == gemm_rates.end()) {
            rate = of(gemm_rates.back());
        } else {
            const GemmRate& below = *(above - 1);
            const double weight = std::log(work.side / below.side) / std::log(above->side / below.side);
            rate = of(below) + weight * (of(*above) - of(below));
        }
    }
    const double arithmetic = rate > 0 ? work.flops / rate : 0;
    return operation_s + std::max(arithmetic, bytes > 0 ? work.bytes / bytes : 0);
}

std::unique_ptr<Backend> make_meta(DeviceRates rates, Traits traits) {
    return std::make_unique<Meta>(std::move(rates), traits);
}

}  // namespace maestro::backend
