// Compares the FLOP rate of a whole language section with that of one large GEMM of the same library, on one
// core: forward and backward of a micro-batch of four samples of 512 tokens, in four layers of width 1024.
// Both are measured in one run, so that their ratio does not depend on the machine's load.
#include <benchmark/benchmark.h>
#include <fmt/core.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "model/module.hpp"
#include "ops/linear.hpp"

using namespace maestro;

namespace {

/// A GEMM with m = 2048, k = 1024 and n = 3072.
void gemm(benchmark::State& state, DType type) {
    const auto backend = backend::make_cpu(1);
    backend::Arena arena(*backend, 64 << 20);
    const Tensor x = arena.allocate(type, {2048, 1024}), w = arena.allocate(type, {3072, 1024}),
                 y = arena.allocate(type, {2048, 3072});
    const Random random(1, "gemm");
    for (const Tensor& t : {x, w})
        for (std::int64_t i = 0; i < t.size(); ++i) {
            const auto value = static_cast<float>(random.normal(static_cast<std::uint64_t>(i)));
            if (type == DType::f32)
                t.as<float>()[i] = value;
            else
                t.as<bf16>()[i] = bf16(value);
        }
    ops::linear(*backend, x, w, y);  // compiles kernels and touches the memory
    for (auto _ : state) ops::linear(*backend, x, w, y);
    state.counters["FLOP/s"] =
        benchmark::Counter(2.0 * 2048 * 1024 * 3072, benchmark::Counter::kIsIterationInvariantRate);
}

/// Forward and backward of one micro-batch.
void section(benchmark::State& state, DType type) {
    const auto backend = backend::make_cpu(1);
    const model::ModelSpec spec{.kind = model::ModelSpec::Kind::language,
                                .name = "bench",
                                .layers = 4,
                                .width = 1024,
                                .mixers = {model::AttentionForm{.heads = 16, .kv_heads = 8, .head_dim = 64}},
                                .mlp = 3072,
                                .vocabulary = 8192};
    const model::Role role{
        .section = "bench", .inputs = {}, .loss_terms = {model::LossTerm{}}, .seed = 1, .compute = type};
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
    const auto module = model::make_module(*backend, spec, role);
    backend::Arena saved(*backend, footprint.saved), scratch(*backend, footprint.scratch);
    const auto step = [&] {
        saved.reset();
        Tensor output;
        model::Result result;
        const auto kept = module->forward({.samples = samples, .loss_scale = 1.0 / (kSamples * kTokens)}, {},
                                          saved, scratch, output, result);
        module->backward(*kept, {}, {}, scratch);
    };
    step();
    for (auto _ : state) step();
    state.counters["FLOP/s"] = benchmark::Counter(footprint.forward_flops + footprint.backward_flops,
                                                  benchmark::Counter::kIsIterationInvariantRate);
    state.counters["tokens/s"] =
        benchmark::Counter(kSamples * kTokens, benchmark::Counter::kIsIterationInvariantRate);
}

/// Prints what ConsoleReporter prints, and keeps the medians for the ratios.
class Reporter final : public benchmark::ConsoleReporter {
public:
    Reporter() : ConsoleReporter(isatty(STDOUT_FILENO) ? OO_ColorTabular : OO_Tabular) {}
    void ReportRuns(const std::vector<Run>& runs) override {
        ConsoleReporter::ReportRuns(runs);
        for (const Run& run : runs)
            if (run.aggregate_name == "median")
                for (const auto& [name, counter] : run.counters)
                    medians_[run.run_name.function_name + " " + name] = counter.value;
    }
    double ratio(const std::string& over, const std::string& under) const {
        const auto a = medians_.find(over), b = medians_.find(under);
        return a == medians_.end() || b == medians_.end() ? 0 : a->second / b->second;
    }

private:
    std::map<std::string, double> medians_;
};

}  // namespace

BENCHMARK_CAPTURE(gemm, fp32, DType::f32);
BENCHMARK_CAPTURE(gemm, bf16, DType::bf16);
BENCHMARK_CAPTURE(section, fp32, DType::f32);
BENCHMARK_CAPTURE(section, bf16, DType::bf16);

int main(int argc, char** argv) {
    // Repetitions of the four benchmarks are interleaved, so that a slow phase of the machine affects all of
    // them.
    std::vector<char*> arguments(argv, argv + argc);
    std::string repetitions = "--benchmark_repetitions=5",
                interleaving = "--benchmark_enable_random_interleaving=true",
                medians = "--benchmark_report_aggregates_only=true", time = "--benchmark_min_time=1";
    arguments.insert(arguments.begin() + 1,
                     {repetitions.data(), interleaving.data(), medians.data(), time.data()});
    int count = static_cast<int>(arguments.size());
    benchmark::Initialize(&count, arguments.data());
    if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 64;
    benchmark::AddCustomContext("backend", backend::make_cpu(1)->describe());
    Reporter reporter;
    benchmark::RunSpecifiedBenchmarks(&reporter);
    fmt::print("section over GEMM, fp32: {:.3f}\n",
               reporter.ratio("section/fp32 FLOP/s", "gemm/fp32 FLOP/s"));
    fmt::print("bf16 over fp32: GEMM {:.2f}, section {:.2f}\n",
               reporter.ratio("gemm/bf16 FLOP/s", "gemm/fp32 FLOP/s"),
               reporter.ratio("section/bf16 tokens/s", "section/fp32 tokens/s"));
}
