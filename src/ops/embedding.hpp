// Rows of a table by token id. V vocabulary, C channels.
#pragma once

#include "backend/arena.hpp"

namespace maestro::ops {

/// y[t] = table[ids[t]], ids[T] of i32; a negative id leaves the row zero. Ids are below V (checked on the
/// CPU).
void embedding(backend::Backend& b, const Tensor& ids, const Tensor& table, const Tensor& y);
/// dtable[ids[t]] += dy[t]; negative ids are skipped.
void embedding_backward(backend::Backend& b, const Tensor& ids, const Tensor& dy, const Tensor& dtable,
                        backend::Arena& scratch);

}  // namespace maestro::ops
