// How near a whole language section comes to the rate of one large product of the same library, on one core:
// forward and backward of micro-batches of four 512-token samples, four layers of width 1024. Ratios within
// one run.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/random.hpp"
#include "model/module.hpp"
#include "ops/linear.hpp"

using namespace maestro;

namespace {

double now_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class Body>
double median_s(int runs, Body&& body) {
    body();  // kernels are compiled, memory is touched
    std::vector<double> times;
    for (int i = 0; i < runs; ++i) {
        const double start = now_s();
        body();
        times.push_back(now_s() - start);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

/// FLOP/s of a 2048 x 1024 x 3072 product.
double product_rate(backend::Backend& backend, DType type) {
    backend::Arena arena(backend, 64 << 20);
    const Tensor x = arena.allocate(type, {2048, 1024}), w = arena.allocate(type, {3072, 1024}),
                 y = arena.allocate(type, {2048, 3072});
    const Random random(1, "product");
    for (const Tensor& t : {x, w})
        for (std::int64_t i = 0; i < t.size(); ++i) {
            const auto value = static_cast<float>(random.normal(static_cast<std::uint64_t>(i)));
            if (type == DType::f32)
                t.as<float>()[i] = value;
            else
                t.as<bf16>()[i] = bf16(value);
        }
    return 2.0 * 2048 * 1024 * 3072 / median_s(9, [&] { ops::linear(backend, x, w, y); });
}

struct Rate {
    double flops_per_s, tokens_per_s;
};

Rate section_rate(backend::Backend& backend, DType type) {
    model::ModelSpec spec{.kind = model::ModelSpec::Kind::language,
                          .name = "bench",
                          .layers = 4,
                          .width = 1024,
                          .heads = 16,
                          .kv_heads = 8,
                          .head_dim = 64,
                          .mlp = 3072,
                          .vocabulary = 8192};
    model::Role role{.section = "bench", .inputs = {}, .loss = true, .seed = 1, .compute = type, .tp = {}};
    constexpr std::size_t kSamples = 4, kTokens = 512;
    std::vector<std::vector<std::int32_t>> tokens(kSamples, std::vector<std::int32_t>(kTokens));
    const std::vector<float> weights(kTokens, 1.0f);
    const std::vector<std::uint8_t> flags(kTokens, 0);
    const Random random(2, "tokens");
    std::vector<model::SampleView> samples;
    for (std::size_t s = 0; s < kSamples; ++s) {
        for (std::size_t t = 0; t < kTokens; ++t)
            tokens[s][t] = static_cast<std::int32_t>(random.bits(s * kTokens + t) % 8192);
        samples.push_back({static_cast<std::int64_t>(s), tokens[s], weights, flags, {}});
    }
    const std::vector<model::SampleShape> shapes(kSamples, {kTokens, {}, 0});
    const model::Footprint footprint = model::measure(spec, role, shapes);
    const auto module = model::make_module(backend, spec, role);
    backend::Arena saved(backend, footprint.saved), scratch(backend, footprint.scratch);
    const double time = median_s(5, [&] {
        saved.reset();
        Tensor output;
        model::Result result;
        const auto state = module->forward({.samples = samples, .loss_scale = 1.0 / (kSamples * kTokens)}, {},
                                           saved, scratch, output, result);
        module->backward(*state, {}, {}, scratch);
    });
    return {(footprint.forward_flops + footprint.backward_flops) / time, kSamples * kTokens / time};
}

}  // namespace

int main() {
    const auto backend = backend::make_cpu(1);
    fmt::print("{}\n", backend->describe());
    const double product = product_rate(*backend, DType::f32);
    const Rate section = section_rate(*backend, DType::f32);
    fmt::print("fp32: product {:.1f} GFLOP/s, section {:.1f} GFLOP/s, ratio {:.3f}, {:.0f} tokens/s\n",
               product / 1e9, section.flops_per_s / 1e9, section.flops_per_s / product, section.tokens_per_s);
    const double product16 = product_rate(*backend, DType::bf16);
    const Rate section16 = section_rate(*backend, DType::bf16);
    fmt::print("bf16: product {:.1f} GFLOP/s ({:.2f} x fp32), section {:.0f} tokens/s, {:.2f} x fp32\n",
               product16 / 1e9, product16 / product, section16.tokens_per_s,
               section16.tokens_per_s / section.tokens_per_s);
}
