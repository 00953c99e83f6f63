// GEMMs, and attention over packed sequences.
#include "ops/attention/attention.hpp"
#include "ops/grouped_linear.hpp"
#include "ops/linear.hpp"
#include "ops/low_rank.hpp"
#include "types.hpp"

namespace maestro::gpu_check {

namespace {

std::vector<Operation> gemms() {
    return {
        {"linear", kArithmetic, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor x = w.random(t, {s.rows, s.inputs}), weights = w.random(t, {s.outputs, s.inputs}),
                          y = w.result(t, {s.rows, s.outputs});
             return [=, &w] { ops::linear(w.b, x, weights, y); };
         },
         Operation::Shape::gemm},
        {"linear_gelu", kArithmetic, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor x = w.random(t, {s.rows, s.inputs}), weights = w.random(t, {s.outputs, s.inputs}),
                          bias = w.random(t, {s.outputs}), y = w.result(t, {s.rows, s.outputs}),
                          active = w.result(t, {s.rows, s.outputs});
             return [=, &w] { ops::linear_gelu(w.b, x, weights, bias, y, active, ops::GeluForm::tanh); };
         },
         Operation::Shape::gemm},
        {"linear_accumulate", kArithmetic, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor x = w.random(t, {s.rows, s.inputs}), weights = w.random(t, {s.outputs, s.inputs}),
                          y = w.sum(t, {s.rows, s.outputs});
             return [=, &w] { ops::linear_accumulate(w.b, x, weights, y); };
         },
         Operation::Shape::gemm},
        {"linear_backward_input", kArithmetic, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor dy = w.random(t, {s.rows, s.outputs}), weights = w.random(t, {s.outputs, s.inputs}),
                          dx = w.result(t, {s.rows, s.inputs});
             return [=, &w] { ops::linear_backward_input(w.b, dy, weights, dx, false); };
         },
         Operation::Shape::gemm},
        {"linear_backward_weight", kArithmetic, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor dy = w.random(t, {s.rows, s.outputs}), x = w.random(t, {s.rows, s.inputs}),
                          dw = w.sum(sums_of(t), {s.outputs, s.inputs});
             return [=, &w] { ops::linear_backward_weight(w.b, dy, x, dw); };
         },
         Operation::Shape::gemm},
        {"linear_backward_weight, with a bias", kArithmetic, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor dy = w.random(t, {s.rows, s.outputs}), x = w.random(t, {s.rows, s.inputs}),
                          dw = w.sum(sums_of(t), {s.outputs, s.inputs}),
                          dbias = w.sum(sums_of(t), {s.outputs});
             return [=, &w] { ops::linear_backward_weight(w.b, dy, x, dw, dbias, w.scratch); };
         },
         Operation::Shape::gemm},
    };
}

/// The linear layers of eight experts: one has no rows, one has half of them, and the others share the rest.
struct Experts {
    Experts(Workbench& w, DType t, const Sizes& s)
        : x(w.random(t, {s.rows, s.inputs})),
          dy(w.random(t, {s.rows, s.outputs})),
          weights(w.random(t, {kExperts * s.outputs, s.inputs})) {
        begin = {0, 0, s.rows / 2};
        for (std::int64_t i = 3; i <= kExperts; ++i)
            begin.push_back(s.rows / 2 + (s.rows - s.rows / 2) * (i - 2) / (kExperts - 2));
    }
    static constexpr std::int64_t kExperts = 8;
    Tensor x, dy, weights;
    std::vector<std::int64_t> begin;
};

std::vector<Operation> grouped() {
    return {
        {"grouped_linear", kArithmetic, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Experts e(w, t, s);
             const Tensor y = w.result(t, {s.rows, s.outputs});
             return [=, &w] { ops::grouped_linear(w.b, e.x, e.weights, e.begin, y); };
         },
         Operation::Shape::gemm},
        {"grouped_linear_backward_input", kArithmetic, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Experts e(w, t, s);
             const Tensor dx = w.result(t, {s.rows, s.inputs});
             return [=, &w] { ops::grouped_linear_backward_input(w.b, e.dy, e.weights, e.begin, dx); };
         },
         Operation::Shape::gemm},
        {"grouped_linear_backward_weight", kArithmetic, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Experts e(w, t, s);
             const Tensor dw = w.sum(sums_of(t), {Experts::kExperts * s.outputs, s.inputs});
             return [=, &w] { ops::grouped_linear_backward_weight(w.b, e.dy, e.x, e.begin, dw); };
         },
         Operation::Shape::gemm},
    };
}

/// The GEMMs of an adapter of rank 16, of the second of two matrices side by side.
std::vector<Operation> low_rank() {
    constexpr std::int64_t kRank = 16;
    constexpr double kScale = 0.5;
    return {
        {"low_rank_inner", kArithmetic, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor x = w.random(t, {s.rows, s.inputs}), a = w.random(t, {2 * kRank, s.inputs}),
                          inner = w.result(t, {s.rows, 2 * kRank});
             return [=, &w] { ops::low_rank_inner(w.b, x, a, kScale, inner); };
         },
         Operation::Shape::gemm},
        {"low_rank_add", kArithmetic, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor inner = w.random(t, {s.rows, 2 * kRank}), b = w.random(t, {s.outputs, kRank}),
                          y = w.sum(t, {s.rows, 2 * s.outputs});
             return [=, &w] { ops::low_rank_add(w.b, {inner, kRank}, b, {y, s.outputs}); };
         },
         Operation::Shape::gemm},
        {"low_rank_backward_inner", kArithmetic, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor dy = w.random(t, {s.rows, 2 * s.outputs}), b = w.random(t, {s.outputs, kRank}),
                          d_inner = w.sum(t, {s.rows, 2 * kRank});
             return [=, &w] {
                 ops::low_rank_backward_inner(w.b, {dy, s.outputs}, b, kScale, {d_inner, kRank});
             };
         },
         Operation::Shape::gemm},
        {"low_rank_backward_weight", kArithmetic, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor dy = w.random(t, {s.rows, 2 * s.outputs}), inner = w.random(t, {s.rows, 2 * kRank}),
                          db = w.sum(sums_of(t), {s.outputs, kRank});
             return [=, &w] { ops::low_rank_backward_weight(w.b, {dy, s.outputs}, {inner, kRank}, db); };
         },
         Operation::Shape::gemm},
    };
}

/// Three sequences of different lengths with a causal mask. The values are the last columns of qkv.
struct Packed {
    Packed(Workbench& w, DType t, const Sizes& s)
        : q(w.random(t, {s.rows, s.heads * s.head_columns})),
          k(w.random(t, {s.rows, s.kv_heads * s.head_columns})),
          qkv(w.random(t, {s.rows, (s.heads + 2 * s.kv_heads) * s.head_columns})) {
        const auto rows = static_cast<std::int32_t>(s.rows);
        mask = ops::causal_mask(std::vector<std::int32_t>{0, rows / 8, rows / 2, rows});
    }
    Tensor q, k, qkv;
    ops::VarlenMask mask;
};

std::vector<Operation> attention() {
    return {
        {"attention", kArithmetic, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Packed p(w, t, s);
             const Tensor out = w.result(t, {s.rows, p.q.columns()}),
                          lse = w.result(sums_of(t), {s.rows, s.heads});
             return [=, &w] {
                 const backend::ArenaScope scope(w.scratch);
                 ops::attention(w.b, p.q, p.k, p.qkv, p.mask, out, lse, w.scratch);
             };
         },
         Operation::Shape::attention},
        {"attention_backward", kArithmetic, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Packed p(w, t, s);
             const Tensor out = w.filled(t, {s.rows, p.q.columns()}, 0),
                          lse = w.filled(sums_of(t), {s.rows, s.heads}, 0);
             {
                 const backend::ArenaScope scope(w.scratch);
                 ops::attention(w.b, p.q, p.k, p.qkv, p.mask, out, lse, w.scratch);
             }
             // Only the last columns of dvalues are results; the others must not change.
             const Tensor dout = w.random(t, {s.rows, p.q.columns()}),
                          dq = w.result(t, {s.rows, p.q.columns()}),
                          dk = w.result(t, {s.rows, p.k.columns()}),
                          dvalues = w.sum(t, {s.rows, p.qkv.columns()});
             return [=, &w] {
                 const backend::ArenaScope scope(w.scratch);
                 ops::attention_backward(w.b, dout, out, p.q, p.k, p.qkv, lse, p.mask, dq, dk, dvalues,
                                         w.scratch);
             };
         },
         Operation::Shape::attention},
        {"join_attention", kMemory, kSums,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor other = w.random(t, {s.rows, s.heads * s.head_columns}),
                          other_lse = w.random(t, {s.rows, s.heads}),
                          out = w.sum(t, {s.rows, s.heads * s.head_columns}),
                          lse = w.sum(t, {s.rows, s.heads});
             return [=, &w] { ops::join_attention(w.b, other, other_lse, out, lse); };
         },
         Operation::Shape::attention},
    };
}

}  // namespace

std::vector<Operation> matmul_operations() {
    return concatenate({gemms(), grouped(), low_rank(), attention()});
}

}  // namespace maestro::gpu_check
