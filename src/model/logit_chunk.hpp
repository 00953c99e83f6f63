// Which logits of a language model exist at a time. They are by far its largest tensor.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"

namespace maestro::model {

struct LogitChunk {
    DType type;         ///< of the logits and, after the loss, of their gradient
    std::int64_t rows;  ///< targets whose logits exist at a time
};

/// Returns the chunks for a device and the type of activations. `tokens` is the largest part of the
/// vocabulary that a tp rank has, so that all ranks have equal chunks; `models` is 2 where a teacher's logits
/// exist as well.
LogitChunk logit_chunk(bool shares_memory, DType compute, bool train, std::int64_t tokens,
                       std::int64_t models);

}  // namespace maestro::model
