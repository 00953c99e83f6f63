// The loss of a student against its teacher (Hinton, Vinyals and Dean, 2015) over a chunk of logits.
#pragma once

#include <cstdint>
#include <span>

#include "backend/arena.hpp"
#include "ops/vocabulary_part.hpp"

namespace maestro::ops {

/// Sum over rows of scale * weights[i] * ((1 - alpha) * CE(student, targets[i]) + alpha * temperature^2 *
/// KL(teacher || student), both softened by the temperature). student[n, V here] becomes the gradient,
/// teacher[n, V here] is overwritten; f32 or f64. scratch holds one more of them.
double distillation(backend::Backend& b, const Tensor& student, const Tensor& teacher,
                    std::span<const std::int32_t> targets, std::span<const float> weights, double alpha,
                    double temperature, double scale, const VocabularyPart& part, backend::Arena& scratch);

}  // namespace maestro::ops
