// The loss of a student against its teacher (Hinton, Vinyals and Dean, 2015) over a chunk of logits.
#pragma once

#include "backend/arena.hpp"
#include "ops/vocabulary_shard.hpp"

namespace maestro::ops {

/// loss[1] (f64) += the sum over rows of scale * weights[i] * ((1 - alpha) * CE(student, targets[i]) + alpha
/// * temperature^2 * KL(teacher || student), both softened by the temperature). student[n, V here] becomes
/// the gradient, teacher[n, V here] may be overwritten; f32 or f64. On the CPU scratch holds one more of
/// them.
void distillation(backend::Backend& b, const Tensor& student, const Tensor& teacher, const Tensor& targets,
                  const Tensor& weights, double alpha, double temperature, double scale,
                  const VocabularyShard& part, const Tensor& loss, backend::Arena& scratch);

}  // namespace maestro::ops
