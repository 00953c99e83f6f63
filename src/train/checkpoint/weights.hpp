// The weights that a section starts from: those that the deck names.
#pragma once

#include <map>
#include <string>

#include "base/pulse.hpp"
#include "comm/communicator.hpp"
#include "config/deck.hpp"
#include "parallel/parameter_store.hpp"

namespace maestro::train {

/// Verified checkpoints by what the deck's `weights` keys say.
using WeightFiles = std::map<std::string, std::string>;
/// Collective. Error(input_missing, bad_data, io_error).
WeightFiles find_weights(const comm::Communicator& world, const config::Deck& deck, Pulse& pulse);

/// The section of that name in a verified checkpoint, or the only one there is. Error(bad_data).
std::string section_in(const std::string& checkpoint, const std::string& section);
/// Weights of a verified checkpoint into a store, by name: those of this rank's shards, which marks them as
/// set. ParameterGroup::gather_weights() brings the others. Error(bad_data, io_error), as the next two.
void load_weights(const std::string& checkpoint, const std::string& section, parallel::ParameterStore& store,
                  Pulse& pulse);
/// The output head of a teacher, from its weights, into the student's "teacher_head.weight".
void load_teacher_head(const std::string& checkpoint, const std::string& teacher, bool tied,
                       parallel::ParameterStore& student, Pulse& pulse);
/// Everything that the deck's `weights` keys name for this section.
void load_initial_weights(const config::Deck& deck, const WeightFiles& files, int section,
                          parallel::ParameterStore& store, Pulse& pulse);

}  // namespace maestro::train
