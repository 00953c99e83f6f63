// Loss operations over chunks of logits.
#include "ops/cross_entropy.hpp"
#include "ops/distillation.hpp"
#include "types.hpp"

namespace maestro::gpu_check {

namespace {

/// Targets and loss weights of rows.
struct Rows {
    Rows(Workbench& w, const Sizes& s)
        : targets(w.list(w.indices(s.rows, s.vocabulary))), weights(w.random(DType::f32, {s.rows})) {}
    Tensor targets, weights;
};

ops::VocabularyShard whole(const Sizes& s) {
    return {{0, s.vocabulary}, {}};
}

}  // namespace

std::vector<Operation> loss_operations() {
    return {
        {"cross_entropy", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Rows rows(w, s);
             const Tensor logits = w.sum(t, {s.rows, s.vocabulary}), loss = w.sum(DType::f64, {1});
             return [=, &w] {
                 ops::cross_entropy(w.b, logits, rows.targets, rows.weights, 0.5, whole(s), loss, w.scratch);
             };
         },
         Operation::Shape::loss},
        {"cross_entropy_rows", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Rows rows(w, s);
             const Tensor logits = w.sum(t, {s.rows, s.vocabulary}), losses = w.result(DType::f64, {s.rows}),
                          loss = w.sum(DType::f64, {1});
             return [=, &w] {
                 ops::cross_entropy_rows(w.b, logits, rows.targets, rows.weights, 0.5, whole(s), losses, loss,
                                         w.scratch);
             };
         },
         Operation::Shape::loss},
        {"distillation", kMemory, kAll,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Rows rows(w, s);
             const Tensor student = w.sum(t, {s.rows, s.vocabulary}),
                          teacher = w.random(t, {s.rows, s.vocabulary}), loss = w.sum(DType::f64, {3});
             return [=, &w] {
                 ops::distillation(w.b, student, teacher, rows.targets, rows.weights, {0.4, 0.6, 2}, 0.5,
                                   whole(s), loss, w.scratch);
             };
         },
         Operation::Shape::loss},
        {"argmax_rows", kMemory, kSums,
         [](Workbench& w, DType t, const Sizes& s) -> Run {
             const Tensor logits = w.random(t, {s.rows, s.vocabulary}), ids = w.result(DType::i32, {s.rows}),
                          values = w.result(t, {s.rows});
             return [=, &w] { ops::argmax_rows(w.b, logits, ids, values); };
         },
         Operation::Shape::loss},
    };
}

}  // namespace maestro::gpu_check
