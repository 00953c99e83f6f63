// Losses over chunks of logits, with their gradient in place. n rows of a chunk, V vocabulary.
#pragma once

#include "backend/arena.hpp"
#include "ops/vocabulary_shard.hpp"

namespace maestro::ops {

/// logits[n, V here] (f32 or f64) become scale * weights[i] * (softmax - onehot(targets[i])), targets[n] of
/// i32, weights[n] of f32. loss[1] (f64) += the sum of scale * weights[i] * -log softmax[targets[i]], the
/// same on all ranks that share out the vocabulary. A row of weight 0, or with a negative target, gets a zero
/// gradient.
void cross_entropy(backend::Backend& b, const Tensor& logits, const Tensor& targets, const Tensor& weights,
                   double scale, const VocabularyShard& part, const Tensor& loss, backend::Arena& scratch);
/// The same, with the losses[n] (f64) of the rows, and their sum added to loss[1] if there is one.
void cross_entropy_rows(backend::Backend& b, const Tensor& logits, const Tensor& targets,
                        const Tensor& weights, double scale, const VocabularyShard& part,
                        const Tensor& losses, const Tensor& loss, backend::Arena& scratch);
/// ids[i] (i32) = column of the largest logit of row i, the first of equal ones, and values[i] (the type of
/// the logits) that logit.
void argmax_rows(backend::Backend& b, const Tensor& logits, const Tensor& ids, const Tensor& values);

}  // namespace maestro::ops
