// Losses over chunks of logits, with their gradient in place. n rows of a chunk, V vocabulary.
#pragma once

#include <cstdint>
#include <span>

#include "backend/arena.hpp"
#include "ops/vocabulary_part.hpp"

namespace maestro::ops {

/// logits[n, V here] (f32 or f64) become scale * weights[i] * (softmax - onehot(targets[i])). Returns the sum
/// of scale * weights[i] * -log softmax[targets[i]], in double, the same on all ranks that share out the
/// vocabulary. A row of weight 0, or with a negative target, gets a zero gradient.
double cross_entropy(backend::Backend& b, const Tensor& logits, std::span<const std::int32_t> targets,
                     std::span<const float> weights, double scale, const VocabularyPart& part,
                     backend::Arena& scratch);
/// out[i] = index of the largest logit of row i, the first of equal ones.
void argmax_rows(backend::Backend& b, const Tensor& logits, std::span<std::int32_t> out);

}  // namespace maestro::ops
