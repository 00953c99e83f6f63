// Token embedding (PyTorch's nn.Embedding). Shape letters: T rows, V tokens of the table, C channels.
#pragma once

#include "backend/arena.hpp"

namespace maestro::ops {

/// y[T, C] = the rows ids[T] (i32) of table[V, C]. A negative id gives a row of zeros. Ids must be below V;
/// the CPU throws Error(broken_invariant) for others.
void embedding(backend::Backend& b, const Tensor& ids, const Tensor& table, const Tensor& y);
/// dtable[ids[t]] += dy[t] for all t in ascending order, skipping negative ids. dtable[V, C] has the
/// accumulation type of dy[T, C].
void embedding_backward(backend::Backend& b, const Tensor& ids, const Tensor& dy, const Tensor& dtable,
                        backend::Arena& scratch);

}  // namespace maestro::ops
