// Rows of a table by token id. V vocabulary, C channels.
#pragma once

#include <cstdint>
#include <span>

#include "backend/backend.hpp"

namespace maestro::ops {

/// y[t] = table[ids[t]]; a negative id leaves the row zero. Ids are below V (checked).
void embedding(backend::Backend& b, std::span<const std::int32_t> ids, const Tensor& table, const Tensor& y);
/// dtable[ids[t]] += dy[t]; negative ids are skipped.
void embedding_backward(backend::Backend& b, std::span<const std::int32_t> ids, const Tensor& dy,
                        const Tensor& dtable);

}  // namespace maestro::ops
