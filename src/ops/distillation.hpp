// The distillation loss (Hinton, Vinyals and Dean, "Distilling the knowledge in a neural network", 2015) over
// a chunk of logits. Shape letters as in cross_entropy.hpp.
#pragma once

#include "backend/arena.hpp"
#include "kernels/distillation.hpp"
#include "ops/vocabulary_shard.hpp"

namespace maestro::ops {

using kernels::Mixture;

/// Adds to loss[3] (f64) the sum over the rows of
///   scale * weights[i] * (hard * CE(student, targets[i])
///                         + soft * temperature^2 * KL(teacher || student)),
/// and the parts of both terms in it. The KL term softens both distributions by the temperature. student[n,
/// V] is replaced by its gradient and teacher[n, V] may be overwritten; both have the same type, f32, f64 or
/// bf16. On the CPU the scratch memory holds another [n, V], in bf16 three in f32. Rows with weight 0 or a
/// negative target do not count. Collective over the ranks of `shard`.
void distillation(backend::Backend& b, const Tensor& student, const Tensor& teacher, const Tensor& targets,
                  const Tensor& weights, const Mixture& mixture, double scale, const VocabularyShard& shard,
                  const Tensor& loss, backend::Arena& scratch);

}  // namespace maestro::ops
