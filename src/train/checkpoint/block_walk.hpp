// The weights of a rank block by block, whatever they come from or go to: what is read ahead of the weights
// stays small beside them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "base/pulse.hpp"
#include "parallel/parameter_store.hpp"

namespace maestro::train {

/// Calls body(Range) for consecutive blocks of `elements`, with at most `most` elements each.
template <class Body>
void for_blocks(Range elements, std::int64_t most, Body&& body) {
    for (std::int64_t at = elements.begin; at < elements.end; at += most)
        body(Range{at, std::min(at + most, elements.end)});
}

/// Elements of a checkpoint that are read or written at once, 16 MiB.
inline constexpr std::int64_t kCheckpointBlock = 1 << 22;

/// Reads elements of a parameter held by this rank: values[i] becomes element block.begin + i. Called by
/// several threads at once, each with its own pulse.
using ReadBlock = std::function<void(Range block, float* values, Pulse& pulse)>;

/// Sets this rank's shard of a parameter and marks it as initialized. `read` is called by up to `threads`
/// threads, for at most `most` elements each. Throws what it throws.
void load_parameter(const parallel::Parameter& parameter, parallel::ParameterStore& store, int threads,
                    std::int64_t most, const ReadBlock& read, Pulse& pulse);

}  // namespace maestro::train
