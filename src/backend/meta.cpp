#include <algorithm>
#include <cmath>
#include <span>
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
    double launch_s() const override { return rates_.launch_s; }
    double expert_imbalance() const override { return rates_.expert_imbalance; }

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

namespace {

/// Returns the rate at x, interpolated over log(x) between rates that ascend by x_of(rate). Below the first
/// it is proportional to x, above the last it stays.
template <class Rate, class X, class Value>
double rate_at(std::span<const Rate> rates, double x, const X& x_of, const Value& value_of) {
    const auto above = std::lower_bound(rates.begin(), rates.end(), x,
                                        [&](const Rate& rate, double at) { return x_of(rate) < at; });
    if (above == rates.begin()) return value_of(*above) * x / x_of(*above);
    if (above == rates.end()) return value_of(rates.back());
    const Rate& below = *(above - 1);
    const double weight = std::log(x / x_of(below)) / std::log(x_of(*above) / x_of(below));
    return value_of(below) + weight * (value_of(*above) - value_of(below));
}

double gemm_rate(std::span<const DeviceRates::GemmRate> rates, const Work& work) {
    return rate_at(
        rates, work.side, [](const auto& rate) { return rate.side; },
        [&](const auto& rate) { return work.dtype == DType::bf16 ? rate.bf16_flops : rate.f32_flops; });
}

double attention_rate(std::span<const DeviceRates::AttentionRate> rates, const Work& work) {
    const auto distance = [&](const DeviceRates::AttentionRate& rate) {
        return std::abs(std::log(rate.head_dim / work.side));
    };
    const auto nearest = std::min_element(
        rates.begin(), rates.end(), [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
    const auto end = std::find_if(nearest, rates.end(),
                                  [&](const auto& rate) { return rate.head_dim != nearest->head_dim; });
    const bool bf16 = work.dtype == DType::bf16, backward = work.kind == Work::Kind::attention_backward;
    return rate_at(
        std::span(nearest, end), work.length, [](const auto& rate) { return rate.length; },
        [&](const auto& rate) {
            if (backward) return bf16 ? rate.backward_bf16_flops : rate.backward_f32_flops;
            return bf16 ? rate.bf16_flops : rate.f32_flops;
        });
}

}  // namespace

double DeviceRates::seconds(const Work& work) const {
    double rate = element_flops;
    if (work.length > 0 && !attention_rates.empty())
        rate = attention_rate(attention_rates, work);
    else if (work.kind == Work::Kind::grouped_gemm && work.side > 0 && !grouped_rates.empty())
        rate = gemm_rate(grouped_rates, work);
    else if (work.side > 0 && !gemm_rates.empty())
        rate = gemm_rate(gemm_rates, work);
    const double arithmetic = rate > 0 ? work.flops / rate : 0;
    return operation_s + std::max(arithmetic, bytes > 0 ? work.bytes / bytes : 0);
}

std::unique_ptr<Backend> make_meta(DeviceRates rates, Traits traits) {
    return std::make_unique<Meta>(std::move(rates), traits);
}

}  // namespace maestro::backend
