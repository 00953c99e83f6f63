// Memory of greedy decoding. The decoding itself is Language::record() and Language::decode().
#pragma once

#include "model/module.hpp"

namespace maestro::model {

/// Returns the bytes of a Continuation of `rows` rows and of the scratch memory in which one row is computed,
/// on a rank of the mesh: what an arena needs that serves Language::make_continuation() and decode(). Runs
/// the model's code on the meta backend. `role` is that of the whole section in an evaluation, with the loss.
std::size_t decoding_bytes(const ModelSpec& spec, const Role& role, std::int64_t rows,
                           const backend::Traits& traits, parallel::Mesh mesh);

}  // namespace maestro::model
