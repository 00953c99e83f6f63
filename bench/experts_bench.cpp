// The MLP of a mixture of 64 experts, of which each token uses 8, beside a dense MLP of equal active size.
// "layer": forward and backward of the blocks of a transformer with norm, router and residual connection.
// "MLP": gate_up, SwiGLU and down alone, with rows that are already sorted by expert, each as likely as any
// other. Both sides are measured in turn, and the fastest round counts. "plan": what every rank of a group
// that shares experts does for the rows of the whole group in each layer, while its device waits.
//     experts_bench [WIDTH HIDDEN TOKENS fp32|bf16 THREADS [ROUNDS]]
// HIDDEN: channels of an expert. Without arguments: a list of sizes.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "backend/arena.hpp"
#include "base/error.hpp"
#include "base/random.hpp"
#include "model/expert_block.hpp"
#include "model/mlp_block.hpp"
#include "ops/grouped_linear.hpp"
#include "ops/linear.hpp"
#include "ops/swiglu.hpp"

using namespace maestro;

namespace {

constexpr std::int64_t kExperts = 64, kChosen = 8;

struct Sizes {
    std::int64_t width = 0, hidden = 0, tokens = 0;
    DType type = DType::f32;
    int threads = 1, rounds = 7;
};

/// The experts of each token, [tokens, kChosen].
std::vector<std::int32_t> random_choices(std::int64_t tokens) {
    std::vector<std::int32_t> choices;
    for (std::int64_t token = 0; token < tokens; ++token) {
        const auto experts = Random(1, "token " + std::to_string(token)).permutation(kExperts);
        for (std::size_t i = 0; i < kChosen; ++i) choices.push_back(static_cast<std::int32_t>(experts[i]));
    }
    return choices;
}

/// The number of the first row of each expert, and that of all rows.
std::vector<std::int64_t> random_routing(std::int64_t tokens) {
    std::vector<std::int64_t> begin(kExperts + 1);
    for (const std::int32_t expert : random_choices(tokens)) ++begin[static_cast<std::size_t>(expert) + 1];
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    return begin;
}

/// The linear layers of an MLP, dense or of experts.
struct Layers {
    std::function<void(const Tensor& x, const Tensor& w, const Tensor& y)> forward;
    std::function<void(const Tensor& dy, const Tensor& w, const Tensor& dx)> backward_input;
    std::function<void(const Tensor& dy, const Tensor& x, const Tensor& dw)> backward_weight;
};

/// An MLP of `rows` rows and `hidden` channels, whose weights have `experts` times as many rows as one MLP.
class Mlp {
public:
    Mlp(backend::Backend& b, backend::Arena& arena, const Sizes& s, std::int64_t rows, std::int64_t hidden,
        std::int64_t experts, Layers layers)
        : b_(b), layers_(std::move(layers)) {
        const DType sums = DType::f32;
        const auto make = [&](DType type, std::int64_t of_rows, std::int64_t columns) {
            const Tensor t = arena.allocate(type, {of_rows, columns});
            fill(t);
            return t;
        };
        x_ = make(s.type, rows, s.width), y_ = make(s.type, rows, s.width);
        gate_up_ = make(s.type, rows, 2 * hidden), active_ = make(s.type, rows, hidden);
        dx_ = make(s.type, rows, s.width), dy_ = make(s.type, rows, s.width);
        dgate_up_ = make(s.type, rows, 2 * hidden), dactive_ = make(s.type, rows, hidden);
        w_gate_up_ = make(s.type, experts * 2 * hidden, s.width);
        w_down_ = make(s.type, experts * s.width, hidden);
        dw_gate_up_ = make(sums, experts * 2 * hidden, s.width);
        dw_down_ = make(sums, experts * s.width, hidden);
    }
    static constexpr const char* kParts[] = {"gate_up", "swiglu",     "down",       "down dw",
                                             "down dx", "swiglu bwd", "gate_up dw", "gate_up dx"};
    /// Runs part i of the forward and the backward pass.
    void run(std::size_t part) {
        switch (part) {
            case 0:
                return layers_.forward(x_, w_gate_up_, gate_up_);
            case 1:
                return ops::swiglu(b_, gate_up_, active_);
            case 2:
                return layers_.forward(active_, w_down_, y_);
            case 3:
                return layers_.backward_weight(dy_, active_, dw_down_);
            case 4:
                return layers_.backward_input(dy_, w_down_, dactive_);
            case 5:
                return ops::swiglu_backward(b_, dactive_, gate_up_, dgate_up_);
            case 6:
                return layers_.backward_weight(dgate_up_, x_, dw_gate_up_);
            default:
                return layers_.backward_input(dgate_up_, w_gate_up_, dx_);
        }
    }

private:
    /// Random values, which repeat after some thousands.
    static void fill(const Tensor& t) {
        static const std::vector<float> values = [] {
            std::vector<float> list;
            for (std::uint64_t i = 0; i < 4099; ++i)
                list.push_back(0.1f * static_cast<float>(Random(1, "values").normal(i)));
            return list;
        }();
        for (std::size_t i = 0; i < static_cast<std::size_t>(t.size()); ++i)
            if (t.dtype == DType::bf16)
                t.as<bf16>()[i] = bf16(values[i % values.size()]);
            else
                t.as<float>()[i] = values[i % values.size()];
    }
    backend::Backend& b_;
    Layers layers_;
    Tensor x_, y_, gate_up_, active_, dx_, dy_, dgate_up_, dactive_;
    Tensor w_gate_up_, w_down_, dw_gate_up_, dw_down_;
};

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/// A block of a transformer with random weights, and its forward and backward pass.
template <class Block>
class Layer {
public:
    Layer(backend::Backend& b, const model::ModelSpec& spec, const Sizes& s)
        : b_(b),
          store_(b, mesh_, "bench", 1, s.type),
          block_(b, spec, role_of(s), mesh_, store_, ""),
          sequences_(partition_of(s), parallel::AttentionMask::causal, mesh_),
          saved_(b, kRoom),
          scratch_(b, kRoom),
          rows_(b, kRoom) {
        store_.allocate(1);
        Pulse pulse;
        store_.initialize(pulse);
        store_.zero_gradients();
        input_ = rows_.allocate(s.type, {s.tokens, s.width});
        output_ = rows_.allocate(s.type, {s.tokens, s.width});
        d_stream_ = rows_.allocate(s.type, {s.tokens, s.width});
        fill(input_);
    }
    double run_s() {
        saved_.reset();
        scratch_.reset();
        fill(d_stream_);
        const auto start = Clock::now();
        const auto kept = block_.allocate(input_, sequences_, saved_, saved_);
        block_.forward(kept, output_, sequences_, scratch_);
        block_.backward(kept, d_stream_, sequences_, scratch_);
        return seconds_since(start);
    }

private:
    static constexpr std::size_t kRoom = std::size_t{1} << 31;  // of which only what is used takes memory
    static model::Role role_of(const Sizes& s) {
        model::Role role{};
        role.compute = s.type;
        return role;
    }
    static parallel::Partition partition_of(const Sizes& s) {
        const std::int64_t lengths[] = {s.tokens};
        return {lengths, parallel::AttentionMask::causal, {}};
    }
    void fill(const Tensor& t) {
        for (std::int64_t i = 0; i < t.size(); ++i) {
            const float value = static_cast<float>((i * 7919) % 2003) / 1001.5f - 1;
            if (t.dtype == DType::bf16)
                t.as<bf16>()[i] = bf16(value);
            else
                t.as<float>()[i] = value;
        }
    }
    backend::Backend& b_;
    parallel::Mesh mesh_ = parallel::single_rank_mesh();
    parallel::ParameterStore store_;
    Block block_;
    parallel::Sequences sequences_;
    backend::Arena saved_, scratch_, rows_;
    Tensor input_, output_, d_stream_;
};

void measure_layer(const Sizes& s) {
    const auto backend = backend::make_cpu(s.threads);
    model::ModelSpec spec{};
    spec.width = static_cast<int>(s.width);
    spec.mlp = static_cast<int>(kChosen * s.hidden);
    spec.experts = {.count = kExperts, .per_token = kChosen, .mlp = static_cast<int>(s.hidden)};
    Layer<model::MlpBlock> dense(*backend, spec, s);
    Layer<model::ExpertBlock> experts(*backend, spec, s);
    double dense_s = std::numeric_limits<double>::infinity(), experts_s = dense_s;
    for (int round = 0; round <= s.rounds; ++round) {
        dense_s = std::min(dense_s, dense.run_s());
        experts_s = std::min(experts_s, experts.run_s());
    }
    const auto tokens = static_cast<double>(s.tokens);
    fmt::print(
        "layer: width {}, hidden {}, {} tokens, {}, {} thread{}: dense {:.0f} tokens/s, experts {:.0f} "
        "tokens/s, ratio {:.3f}\n",
        s.width, s.hidden, s.tokens, s.type == DType::bf16 ? "bf16" : "fp32", s.threads,
        s.threads == 1 ? "" : "s", tokens / dense_s, tokens / experts_s, dense_s / experts_s);
}

void measure(const Sizes& s) {
    measure_layer(s);
    const auto backend = backend::make_cpu(s.threads);
    const std::int64_t rows = kChosen * s.tokens, weights = 3 * kExperts * s.hidden * s.width;
    // Of fp32, with some room: the dense MLP has an eighth of the rows, and an eighth of the weights.
    const std::int64_t elements = rows * (5 * s.width + 12 * s.hidden) + 3 * weights;
    backend::Arena arena(*backend, sizeof(float) * static_cast<std::size_t>(elements));
    backend::Backend& b = *backend;
    const std::vector<std::int64_t> begin = random_routing(s.tokens);
    std::vector<Mlp> both;
    both.emplace_back(b, arena, s, s.tokens, kChosen * s.hidden, 1,
                      Layers{[&](const auto& x, const auto& w, const auto& y) { ops::linear(b, x, w, y); },
                             [&](const auto& dy, const auto& w, const auto& dx) {
                                 ops::linear_backward_input(b, dy, w, dx, false);
                             },
                             [&](const auto& dy, const auto& x, const auto& dw) {
                                 ops::linear_backward_weight(b, dy, x, dw);
                             }});
    both.emplace_back(
        b, arena, s, rows, s.hidden, kExperts,
        Layers{[&](const auto& x, const auto& w, const auto& y) { ops::grouped_linear(b, x, w, begin, y); },
               [&](const auto& dy, const auto& w, const auto& dx) {
                   ops::grouped_linear_backward_input(b, dy, w, begin, dx);
               },
               [&](const auto& dy, const auto& x, const auto& dw) {
                   ops::grouped_linear_backward_weight(b, dy, x, begin, dw);
               }});
    constexpr std::size_t kParts = std::size(Mlp::kParts);
    constexpr double kNone = std::numeric_limits<double>::infinity();
    std::vector<std::vector<double>> part_s(2, std::vector<double>(kParts, kNone));
    std::vector<double> pass_s(2, kNone);
    for (int round = 0; round <= s.rounds; ++round)
        for (std::size_t m = 0; m < 2; ++m) {
            double sum = 0;
            for (std::size_t part = 0; part < kParts; ++part) {
                const auto start = Clock::now();
                both[m].run(part);
                const double seconds = seconds_since(start);
                sum += seconds;
                part_s[m][part] = std::min(part_s[m][part], seconds);
            }
            if (round > 0) pass_s[m] = std::min(pass_s[m], sum);  // the first round compiles kernels
        }
    const auto tokens = static_cast<double>(s.tokens);
    fmt::print(
        "MLP: width {}, hidden {}, {} tokens, {}, {} thread{}: dense {:.0f} tokens/s, experts {:.0f} "
        "tokens/s, "
        "ratio {:.3f}\n    dense / experts:",
        s.width, s.hidden, s.tokens, s.type == DType::bf16 ? "bf16" : "fp32", s.threads,
        s.threads == 1 ? "" : "s", tokens / pass_s[0], tokens / pass_s[1], pass_s[0] / pass_s[1]);
    for (std::size_t part = 0; part < kParts; ++part)
        fmt::print("{} {} {:.1f}/{:.1f} ms", part > 0 ? "," : "", Mlp::kParts[part], 1e3 * part_s[0][part],
                   1e3 * part_s[1][part]);
    fmt::print("\n");
}

/// `ranks` share the experts, eight on each node.
void measure_plan(int ranks, std::int64_t tokens) {
    std::vector<int> nodes(static_cast<std::size_t>(ranks));
    for (std::size_t rank = 0; rank < nodes.size(); ++rank) nodes[rank] = static_cast<int>(rank) / 8;
    const parallel::ExpertGroup group{
        {.ep = ranks, .etp = 1}, 0, kExperts, kChosen, collective::Nodes(nodes)};
    const std::vector<std::int64_t> rows(nodes.size(), tokens / ranks);
    const std::vector<std::int32_t> choices = random_choices(tokens);
    double least_s = std::numeric_limits<double>::infinity();
    std::size_t rounds = 0;
    for (int i = 0; i < 7; ++i) {
        const auto start = Clock::now();
        rounds =
            parallel::plan_expert_rounds(group, rows, choices, parallel::expert_limits(group, rows)).size();
        least_s = std::min(least_s, seconds_since(start));
    }
    const parallel::ExpertHostBytes bytes = parallel::expert_host_bytes(group, rows);
    fmt::print(
        "plan: {} tokens of {} ranks, {} per node: {:.1f} ms, {} round{}; {:.1f} MB of choices, {:.1f} MB "
        "for the result, {:.1f} MB while it plans\n",
        tokens, ranks, std::min(ranks, 8), 1e3 * least_s, rounds, rounds == 1 ? "" : "s",
        1e-6 * static_cast<double>(choices.size() * sizeof(std::int32_t)),
        1e-6 * static_cast<double>(bytes.round), 1e-6 * static_cast<double>(bytes.planning));
}

}  // namespace

int main(int argc, char** argv) {
    try {
        if (argc > 1) {
            if (argc < 6)
                throw Error(ExitCode::usage,
                            "experts_bench [WIDTH HIDDEN TOKENS fp32|bf16 THREADS [ROUNDS]]");
            measure({.width = std::stoll(argv[1]),
                     .hidden = std::stoll(argv[2]),
                     .tokens = std::stoll(argv[3]),
                     .type = std::string(argv[4]) == "bf16" ? DType::bf16 : DType::f32,
                     .threads = std::stoi(argv[5]),
                     .rounds = argc > 6 ? std::stoi(argv[6]) : 7});
            return 0;
        }
        measure_plan(8, 65536);
        measure_plan(64, 65536);
        measure_plan(64, 524288);
        for (const DType type : {DType::f32, DType::bf16})
            for (const int threads : {1, 2})
                for (const std::int64_t width : {512, 1024})
                    for (const std::int64_t tokens : {2048, 4096})
                        measure({.width = width,
                                 .hidden = 256,
                                 .tokens = tokens,
                                 .type = type,
                                 .threads = threads});
    } catch (const std::exception& error) {
        fmt::print(stderr, "{}\n", error.what());
        return 1;
    }
}
