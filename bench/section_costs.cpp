// What a language section's micro-batch and its optimizer ask of a device, operation by operation, as one
// JSON object: its own code on a backend that computes nothing. scripts/cuda/roofline.py makes times of it.
// Arguments are KEY=VALUE: the sizes of the model, `tokens` of a sample, `samples` of the micro-batch.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "collective/group.hpp"
#include "model/module.hpp"
#include "train/optimizer.hpp"

using namespace maestro;

namespace {

/// meta, with a line for each operation instead of a sum over all.
class Ledger final : public backend::Backend {
public:
    struct Line {
        std::string operation;
        std::int64_t m = 0, n = 0, k = 0;  ///< of a product
        double flops = 0, bytes = 0;       ///< of a call
        bool tensor_cores = false;         ///< it consists of products
        DType dtype = DType::f32;
        auto operator<=>(const Line&) const = default;
    };
    using Lines = std::map<Line, std::int64_t>;  ///< with the calls of each

    std::string describe() const override { return "ledger: counts by operation, computes nothing"; }
    bool computes() const override { return false; }
    int threads() const override { return 1; }
    void* allocate(std::size_t) override { return reinterpret_cast<void*>(64); }
    void release(void*) noexcept override {}
    bool shares_memory() const override { return false; }
    void upload(const void*, const Tensor&) override {}
    void download(const Tensor&, void*) override {}
    void gemm(const Gemm& g) override {
        const char* const form = g.transpose_a ? "dw += dy^T x" : (g.transpose_b ? "y = x w^T" : "dx = dy w");
        const backend::Work work = work_of(g);
        ++lines_[{form, g.m, g.n, g.k, work.flops, work.bytes, true, g.in}];
    }

    Lines take() { return std::exchange(lines_, {}); }

protected:
    /// Every operation but products passes here.
    double seconds_of(const backend::Work& work) const override {
        ++lines_[{name_of(work), 0, 0, 0, work.flops, work.bytes, work.side > 0, work.dtype}];
        return 0;
    }

private:
    /// "void maestro::ops::rms_norm(...)": rms_norm.
    static std::string name_of(const backend::Work& work) {
        const std::string_view whole = work.where.function_name();
        const std::string_view head = whole.substr(0, whole.find('('));
        return std::string(head.substr(head.find_last_of(": ") + 1));
    }
    mutable Lines lines_;
};

struct Section {
    model::ModelSpec spec{.kind = model::ModelSpec::Kind::language,
                          .name = "1b",
                          .layers = 16,
                          .width = 2048,
                          .heads = 32,
                          .kv_heads = 8,
                          .head_dim = 64,
                          .mlp = 8192,
                          .vocabulary = 128256};
    int tokens = 8192, samples = 1;

    void set(std::string_view word) {
        const std::map<std::string_view, int*> keys{
            {"layers", &spec.layers},     {"width", &spec.width},       {"heads", &spec.heads},
            {"kv_heads", &spec.kv_heads}, {"head_dim", &spec.head_dim}, {"mlp", &spec.mlp},
            {"tokens", &tokens},          {"samples", &samples},        {"vocabulary", &spec.vocabulary}};
        const std::size_t equals = std::min(word.find('='), word.size());
        const auto key = keys.find(word.substr(0, equals));
        const std::string_view value = word.substr(std::min(equals + 1, word.size()));
        int number = 0;
        const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
        if (key == keys.end() || error != std::errc{} || end != value.data() + value.size() || number < 1) {
            std::string names;
            for (const auto& [name, place] : keys) names += fmt::format(" {}", name);
            throw Error(
                ExitCode::usage,
                fmt::format("{}: expected KEY=VALUE with a value of at least 1 and a key of{}", word, names));
        }
        *key->second = number;
    }
};

struct Phases {
    Ledger::Lines forward, backward, update;
    std::int64_t parameters = 0;
};

Phases run(const Section& section) {
    Ledger ledger;
    const model::Role role{.section = "bench", .inputs = {}, .loss = true, .compute = DType::bf16};
    const auto module = model::make_module(ledger, section.spec, role);
    const auto length = static_cast<std::size_t>(section.tokens);
    const std::vector<std::int32_t> tokens(length, 0);
    const std::vector<float> weights(length, 1.0f);
    const std::vector<std::uint8_t> flags(length, 0);
    std::vector<model::SampleView> samples;
    for (int s = 0; s < section.samples; ++s) samples.push_back({s, tokens, weights, flags, {}});
    model::ParameterStore& store = module->parameters();
    train::Optimizer optimizer(ledger, store, collective::make_paper_group(0, 1), module->peers());
    backend::Arena saved, scratch;
    Tensor output;
    model::Result result;
    Phases phases;
    phases.parameters = store.count();
    ledger.take();  // what initial values took
    const auto kept = module->forward({.samples = samples}, {}, saved, scratch, output, result);
    phases.forward = ledger.take();
    module->backward(*kept, {}, {}, scratch);
    phases.backward = ledger.take();
    optimizer.reduce(scratch);
    optimizer.update({}, 1, 1);
    store.zero_gradients();
    phases.update = ledger.take();
    return phases;
}

std::string json(const Ledger::Lines& lines) {
    std::string text;
    for (const auto& [line, calls] : lines)
        text += fmt::format(
            "{}\n    {{\"operation\": \"{}\", \"m\": {}, \"n\": {}, \"k\": {}, \"calls\": {}, \"flops\": {}, "
            "\"bytes\": {}, \"tensor_cores\": {}, \"dtype\": \"{}\"}}",
            text.empty() ? "" : ",", line.operation, line.m, line.n, line.k, calls, line.flops, line.bytes,
            line.tensor_cores, name_of(line.dtype));
    return text;
}

void print(const Section& section, const Phases& phases) {
    const model::ModelSpec& s = section.spec;
    fmt::print(
        "{{\"section\": {{\"layers\": {}, \"width\": {}, \"heads\": {}, \"kv_heads\": {}, \"head_dim\": {}, "
        "\"mlp\": {}, \"vocabulary\": {}, \"tokens\": {}, \"samples\": {}, \"parameters\": {}}},\n",
        s.layers, s.width, s.heads, s.kv_heads, s.head_dim, s.mlp, s.vocabulary, section.tokens,
        section.samples, phases.parameters);
    fmt::print("\"forward\": [{}],\n\"backward\": [{}],\n\"update\": [{}]}}\n", json(phases.forward),
               json(phases.backward), json(phases.update));
}

}  // namespace

int main(int argc, char** argv) {
    try {
        Section section;
        for (int i = 1; i < argc; ++i) section.set(argv[i]);
        print(section, run(section));
    } catch (const Error& error) {
        fmt::print(stderr, "section_costs: {}\n", error.what());
        return static_cast<int>(error.code());
    }
}
