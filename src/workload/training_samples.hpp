// The samples that a deck trains on: those of a file, or sizes alone.
#pragma once

#include <memory>

#include "base/pulse.hpp"
#include "config/deck.hpp"
#include "data/samples.hpp"
#include "workload/scenario.hpp"

namespace maestro::workload {

/// The samples of [data.lengths], which must be given. They mark pictures by the token that the models of the
/// scenario expect. Throws what reading the lengths throws.
std::unique_ptr<data::Samples> sample_lengths(const config::Deck& deck, const Scenario& scenario,
                                              Pulse& pulse);
/// The samples of [data.lengths] or data.train. Throws what opening their file throws.
std::unique_ptr<data::Samples> training_samples(const config::Deck& deck, const Scenario& scenario);

}  // namespace maestro::workload
