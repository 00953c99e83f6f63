// Cross entropy over a chunk of logits, with its gradient in place. Shape letters: n rows of the chunk, V
// tokens of this rank's part of the vocabulary.
//
// Where the tp ranks share the vocabulary this is Megatron-LM's vocab-parallel cross entropy: row maxima and
// sums of exponentials are reduced over the ranks, and the logits are never gathered.
#pragma once

#include "backend/arena.hpp"
#include "ops/vocabulary_shard.hpp"

namespace maestro::ops {

/// Replaces logits[n, V] (f32, f64 or bf16) by their gradient, scale * weights[i] * (softmax -
/// one_hot(targets[i])), and adds the sum over i of scale * weights[i] * -log softmax[targets[i]] to loss[1]
/// (f64); every rank adds the same sum. bf16 is computed in f32, and only the gradient is rounded; on the CPU
/// the scratch memory then holds another [n, V]. targets[n] are i32 and weights[n] f32. A row with weight 0
/// or a negative target has no loss and a gradient of zero. Throws Error(broken_invariant) on the CPU for a
/// target beyond the vocabulary. Collective over the ranks of `shard`.
void cross_entropy(backend::Backend& b, const Tensor& logits, const Tensor& targets, const Tensor& weights,
                   double scale, const VocabularyShard& shard, const Tensor& loss, backend::Arena& scratch);
/// Like cross_entropy(), and writes the losses[n] (f64) of the rows. Their sum is not needed where `loss` is
/// absent.
void cross_entropy_rows(backend::Backend& b, const Tensor& logits, const Tensor& targets,
                        const Tensor& weights, double scale, const VocabularyShard& shard,
                        const Tensor& losses, const Tensor& loss, backend::Arena& scratch);
/// ids[n] (i32) = the column of the largest logit in each row of logits[n, V], the first one of equals;
/// values[n], of the type of the logits, = that logit.
void argmax_rows(backend::Backend& b, const Tensor& logits, const Tensor& ids, const Tensor& values);

}  // namespace maestro::ops
