// Elementwise and row-wise operations.
#include <algorithm>
#include <array>

#include "ops/adamw.hpp"
#include "ops/elementwise.hpp"
#include "ops/expert_rows.hpp"
#include "ops/gelu.hpp"
#include "ops/layer_norm.hpp"
#include "ops/linear.hpp"
#include "ops/reduce.hpp"
#include "ops/rms_norm.hpp"
#include "ops/rotary.hpp"
#include "ops/router.hpp"
#include "ops/swiglu.hpp"
#include "types.hpp"

namespace maestro::gpu_check {

namespace {

/// Update ranges: all elements but one, some of them without weight decay.
Tensor update_of(Workbench& w, std::int64_t n) {
    const std::vector<ops::UpdateRange> updated{
        {{0, n / 3}, true}, {{n / 3, n / 2}, false}, {{n / 2 + 1, n}, true}};
    const auto chunks = ops::update_chunks(updated);
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(chunks.data());
    const auto count = static_cast<std::int64_t>(chunks.size());
    constexpr std::int64_t kEach = sizeof(kernels::UpdateChunk);
    return w.list(std::vector<std::uint8_t>(bytes, bytes + count * kEach)).reshape({count, kEach});
}

std::vector<Operation> elementwise() {
    return {
        {"add", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor x = w.random(t, {s.rows, s.columns}), y = w.sum(t, {s.rows, s.columns});
             return [&w, x, y] { ops::add(w.b, x, y); };
         }},
        {"convert",
         kMemory,
         {DType::f32, DType::bf16},
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor x = w.random(t, {s.rows, s.columns}),
                          y = w.result(t == DType::f32 ? DType::bf16 : DType::f32, {s.rows, s.columns});
             return [&w, x, y] { ops::convert(w.b, x, y); };
         }},
        {"copy", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor x = w.random(t, {s.rows, s.columns}), y = w.result(t, {s.rows, s.columns});
             return [&w, x, y] { ops::copy(w.b, x, y); };
         }},
        {"zero", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor x = w.result(t, {s.rows, s.columns});
             return [&w, x] { ops::zero(w.b, x); };
         }},
        {"reduce", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const std::vector<Tensor> parts{w.random(t, {s.rows, s.columns}),
                                             w.random(t, {s.rows, s.columns}),
                                             w.random(t, {s.rows, s.columns})};
             const Tensor y = w.result(t, {s.rows, s.columns});
             return [&w, parts, y] { ops::reduce(w.b, parts, ops::Reduction::sum, y); };
         }},
        {"gelu", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor x = w.random(t, {s.rows, s.columns}, 2), y = w.result(t, {s.rows, s.columns});
             return [&w, x, y] { ops::gelu(w.b, x, y, ops::GeluForm::tanh); };
         }},
        {"gelu_backward", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor dy = w.random(t, {s.rows, s.columns}), x = w.random(t, {s.rows, s.columns}, 2),
                          dx = w.result(t, {s.rows, s.columns});
             return [&w, dy, x, dx] { ops::gelu_backward(w.b, dy, x, dx, ops::GeluForm::tanh); };
         }},
        {"gelu, exact", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor x = w.random(t, {s.rows, s.columns}, 2), y = w.result(t, {s.rows, s.columns});
             return [&w, x, y] { ops::gelu(w.b, x, y, ops::GeluForm::exact); };
         }},
        {"gelu_backward, exact", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor dy = w.random(t, {s.rows, s.columns}), x = w.random(t, {s.rows, s.columns}, 2),
                          dx = w.result(t, {s.rows, s.columns});
             return [&w, dy, x, dx] { ops::gelu_backward(w.b, dy, x, dx, ops::GeluForm::exact); };
         }},
        {"swiglu", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor x = w.random(t, {s.rows, 2 * s.columns}, 2), y = w.result(t, {s.rows, s.columns});
             return [&w, x, y] { ops::swiglu(w.b, x, y); };
         }},
        {"swiglu_backward", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor dy = w.random(t, {s.rows, s.columns}), x = w.random(t, {s.rows, 2 * s.columns}, 2),
                          dx = w.result(t, {s.rows, 2 * s.columns});
             return [&w, dy, x, dx] { ops::swiglu_backward(w.b, dy, x, dx); };
         }},
    };
}

std::vector<Operation> norms() {
    return {
        {"rms_norm", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor x = w.random(t, {s.rows, s.columns}, 3), weights = w.random(t, {s.columns}),
                          y = w.result(t, {s.rows, s.columns}), rstd = w.result(sums_of(t), {s.rows});
             return [&w, x, weights, y, rstd] { ops::rms_norm(w.b, x, weights, y, rstd, 1e-6); };
         }},
        {"rms_norm_backward", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor dy = w.random(t, {s.rows, s.columns}), x = w.random(t, {s.rows, s.columns}),
                          weights = w.random(t, {s.columns}), rstd = w.random(sums_of(t), {s.rows}),
                          dx = w.sum(t, {s.rows, s.columns}), dw = w.sum(sums_of(t), {s.columns});
             return [=, &w] { ops::rms_norm_backward(w.b, dy, x, weights, rstd, dx, dw, true, w.scratch); };
         }},
        {"layer_norm", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor x = w.random(t, {s.rows, s.columns}, 3), weights = w.random(t, {s.columns}),
                          bias = w.random(t, {s.columns}), y = w.result(t, {s.rows, s.columns}),
                          mean = w.result(sums_of(t), {s.rows}), rstd = w.result(sums_of(t), {s.rows});
             return [=, &w] { ops::layer_norm(w.b, x, weights, bias, y, mean, rstd, 1e-6); };
         }},
        {"layer_norm_backward", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor dy = w.random(t, {s.rows, s.columns}), x = w.random(t, {s.rows, s.columns}),
                          weights = w.random(t, {s.columns}), mean = w.random(sums_of(t), {s.rows}),
                          rstd = w.random(sums_of(t), {s.rows}), dx = w.sum(t, {s.rows, s.columns}),
                          dw = w.sum(sums_of(t), {s.columns}), dbias = w.sum(sums_of(t), {s.columns});
             return [=, &w] {
                 ops::layer_norm_backward(w.b, dy, x, weights, mean, rstd, dx, dw, dbias, true, w.scratch);
             };
         }},
        {"add_bias", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor bias = w.random(t, {s.columns}), y = w.sum(t, {s.rows, s.columns});
             return [&w, bias, y] { ops::add_bias(w.b, bias, y); };
         }},
        {"bias_backward", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor dy = w.random(t, {s.rows, s.columns}), dbias = w.sum(sums_of(t), {s.columns});
             return [&w, dy, dbias] { ops::bias_backward(w.b, dy, dbias, w.scratch); };
         }},
        {"adamw",
         kMemory,
         {DType::f32},
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const std::int64_t n = s.rows * s.columns;
             const Tensor weights = w.sum(t, {n}), gradient = w.random(t, {n}), first = w.sum(t, {n}),
                          second = w.filled(t, {n}, 0.5);
             const Tensor chunks = update_of(w, n);
             return [=, &w] {
                 ops::adamw(w.b, weights, gradient, first, second, chunks,
                            {0.5, 0.9, 0.95, 1e-2, 0.1, 3, 0.7});
             };
         }},
        {"add_squares", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor x = w.random(t, {s.rows, s.columns}), sum = w.sum(DType::f64, {1});
             return [&w, x, sum] { ops::add_squares(w.b, x, sum, w.scratch); };
         }},
    };
}

/// Tensors for rotary embeddings of attention heads, forward and backward.
struct Heads {
    Heads(Workbench& w, DType t, const Sizes& s)
        : qkv(w.random(t, {s.rows, (s.heads + 2 * s.kv_heads) * s.head_columns})),
          q_norm(w.random(t, {s.head_columns})),
          k_norm(w.random(t, {s.head_columns})),
          cos(w.random(sums_of(t), {s.rows, s.head_columns / 2}, 0.5)),
          sin(w.random(sums_of(t), {s.rows, s.head_columns / 2}, 0.5)) {}
    Tensor qkv, q_norm, k_norm, cos, sin;
};

std::vector<Operation> rotary() {
    return {
        {"fill_rotary of a text", kMemory, kSums,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor indices = w.list(w.indices(s.rows, 4096)),
                          cos = w.result(t, {s.rows, s.head_columns / 2}),
                          sin = w.result(t, {s.rows, s.head_columns / 2});
             const RotaryPairs pairs = ops::rotary_1d(s.head_columns, 10'000);
             return [=, &w] { ops::fill_rotary(w.b, std::array{indices}, pairs, cos, sin); };
         },
         Operation::Shape::attention},
        {"fill_rotary of pictures", kMemory, kSums,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor y = w.list(w.indices(s.rows, 64)), x = w.list(w.indices(s.rows, 64)),
                          cos = w.result(t, {s.rows, s.head_columns / 2}),
                          sin = w.result(t, {s.rows, s.head_columns / 2});
             const RotaryPairs pairs = ops::rotary_2d(s.head_columns, 10'000);
             return [=, &w] { ops::fill_rotary(w.b, std::array{y, x}, pairs, cos, sin); };
         },
         Operation::Shape::attention},
        {"head_norm_rotary", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Heads h(w, t, s);
             const Tensor q = w.result(t, {s.rows, s.heads * s.head_columns}),
                          k = w.result(t, {s.rows, s.kv_heads * s.head_columns}),
                          rstd = w.result(sums_of(t), {s.rows, s.heads + s.kv_heads});
             return [=, &w] {
                 ops::head_norm_rotary(w.b, h.qkv, h.q_norm, h.k_norm, h.cos, h.sin, q, k, rstd, 1e-6);
             };
         },
         Operation::Shape::attention},
        {"head_norm_rotary_backward", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Heads h(w, t, s);
             const Tensor dq = w.random(t, {s.rows, s.heads * s.head_columns}),
                          dk = w.random(t, {s.rows, s.kv_heads * s.head_columns}),
                          rstd = w.random(sums_of(t), {s.rows, s.heads + s.kv_heads});
             // The columns of values are written by another operation.
             const Tensor dqkv = w.sum(t, {s.rows, h.qkv.columns()}),
                          dq_norm = w.sum(sums_of(t), {s.head_columns}),
                          dk_norm = w.sum(sums_of(t), {s.head_columns});
             return [=, &w] {
                 ops::head_norm_rotary_backward(w.b, dq, dk, h.qkv, h.q_norm, h.k_norm, h.cos, h.sin, rstd,
                                                dqkv, dq_norm, dk_norm, w.scratch);
             };
         },
         Operation::Shape::attention},
    };
}

constexpr std::int64_t kChoices = 8;  ///< experts of a row

/// What a router reads and computes, for at most 128 experts. One by sigmoid has a bias.
struct Router {
    Router(Workbench& w, DType t, const Sizes& s, ops::RouterScore score)
        : form{score},
          logits(w.random(t, {s.rows, experts_of(s)}, 2)),
          bias(score == ops::RouterScore::sigmoid ? w.random(t, {experts_of(s)}) : Tensor{}),
          scores(w.result(t, {s.rows, experts_of(s)})),
          choice(w.result(DType::i32, {s.rows, kChoices})),
          weight(w.result(t, {s.rows, kChoices})) {}
    static std::int64_t experts_of(const Sizes& s) { return std::min<std::int64_t>(s.columns, 128); }
    void route(Workbench& w) const { ops::route(w.b, logits, bias, form, scores, choice, weight); }

    ops::RouterForm form;
    Tensor logits, bias, scores, choice, weight;
};

Run route(Workbench& w, DType t, const Sizes& s, ops::RouterScore score) {
    const Router router(w, t, s, score);
    return [=, &w] { router.route(w); };
}

Run route_backward(Workbench& w, DType t, const Sizes& s, ops::RouterScore score) {
    const Router router(w, t, s, score);
    const Tensor d_weight = w.random(t, {s.rows, kChoices}),
                 d_logits = w.result(t, {s.rows, Router::experts_of(s)});
    router.route(w);
    return
        [=, &w] { ops::route_backward(w.b, d_weight, router.scores, router.choice, router.form, d_logits); };
}

std::vector<Operation> experts() {
    using ops::RouterScore;
    return {
        {"route", kMemory, kSums,
         [](Workbench& w, DType t, const Sizes& s) { return route(w, t, s, RouterScore::softmax); }},
        {"route, sigmoid", kMemory, kSums,
         [](Workbench& w, DType t, const Sizes& s) { return route(w, t, s, RouterScore::sigmoid); }},
        {"route_backward", kMemory, kSums,
         [](Workbench& w, DType t, const Sizes& s) { return route_backward(w, t, s, RouterScore::softmax); }},
        {"route_backward, sigmoid", kMemory, kSums,
         [](Workbench& w, DType t, const Sizes& s) { return route_backward(w, t, s, RouterScore::sigmoid); }},
        {"balance_backward", kMemory, kSums,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             constexpr std::int64_t kGroups = 4;
             const std::int64_t experts = Router::experts_of(s);
             std::vector<std::int32_t> groups;
             for (std::int64_t r = 0; r < s.rows; ++r)
                 groups.push_back(static_cast<std::int32_t>(r * kGroups / s.rows));
             const Tensor scores = w.random(t, {s.rows, experts}), group = w.list(groups),
                          chosen = w.random(t, {kGroups, experts}), factor = w.random(t, {kGroups}),
                          d = w.sum(t, {s.rows, experts}), loss = w.sum(DType::f64, {1});
             return [=, &w] {
                 ops::balance_backward(w.b, scores, group, chosen, factor, {ops::RouterScore::softmax}, d,
                                       loss, w.scratch);
             };
         }},
        {"sum_rows", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             std::vector<std::int32_t> places = w.indices(s.rows, s.rows, true);
             const std::int64_t rows = s.rows / kChoices + 1;
             places.resize(static_cast<std::size_t>(rows * kChoices), -1);
             const Tensor position = w.list(places).reshape({rows, kChoices}),
                          x = w.random(t, {s.rows, s.columns}), sum = w.sum(t, {rows, s.columns});
             return [=, &w] { ops::sum_rows(w.b, x, position, sum, true); };
         }},
        {"weighted_swiglu", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor x = w.random(t, {s.rows, 2 * s.columns}, 2),
                          weight = w.random(sums_of(t), {s.rows}), y = w.result(t, {s.rows, s.columns});
             return [=, &w] { ops::weighted_swiglu(w.b, x, weight, y); };
         }},
        {"weighted_swiglu_backward", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor dy = w.random(t, {s.rows, s.columns}), x = w.random(t, {s.rows, 2 * s.columns}, 2),
                          weight = w.random(sums_of(t), {s.rows}), dx = w.result(t, {s.rows, 2 * s.columns}),
                          d_weight = w.result(sums_of(t), {s.rows});
             return [=, &w] { ops::weighted_swiglu_backward(w.b, dy, x, weight, dx, d_weight); };
         }},
    };
}

}  // namespace

std::vector<Operation> row_operations() {
    return concatenate({elementwise(), norms(), rotary(), experts()});
}

}  // namespace maestro::gpu_check
