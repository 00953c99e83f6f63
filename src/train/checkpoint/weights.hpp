// Loads the weights that a section starts from.
#pragma once

#include <map>
#include <string>

#include "base/pulse.hpp"
#include "comm/communicator.hpp"
#include "config/deck.hpp"
#include "parallel/parameter_store.hpp"
#include "workload/scenario.hpp"

namespace maestro::train {

/// Verified checkpoints, by the value of the deck's `weights` keys.
using WeightFiles = std::map<std::string, std::string>;
/// Collective, like the next one. Error(input_missing, bad_data, io_error).
WeightFiles find_weights(const comm::Communicator& world, const config::Deck& deck, Pulse& pulse);
/// Checks the folders of published models that the deck names, before memory is allocated for what they may
/// only claim to hold.
void check_folders(const comm::Communicator& world, const config::Deck& deck,
                   const workload::Scenario& scenario, Pulse& pulse);

/// Refuses a verified checkpoint whose adapters have another rank, alpha or targets than the section's: they
/// may be of equal shapes and would be taken for others. Error(bad_data, io_error).
void check_adapters(const std::string& checkpoint, const config::Section& section, Pulse& pulse);

/// Returns the name of the section in a verified checkpoint: `section`, or that of the only section it has.
/// Error(bad_data).
std::string section_in(const std::string& checkpoint, const std::string& section);
/// Loads the weights of this rank's shards from a verified checkpoint, by name, and marks them as
/// initialized. Each weight is read by one rank; ParameterGroup::gather_weights() then distributes it to the
/// others. Error(bad_data, io_error), as the next two.
void load_weights(const std::string& checkpoint, const std::string& section, parallel::ParameterStore& store,
                  Pulse& pulse);
/// Loads the output head of a teacher into `head`, the student's copy of it (model/teacher_head.hpp).
void load_teacher_head(const std::string& checkpoint, const std::string& teacher, bool tied,
                       const parallel::Parameter& head, parallel::ParameterStore& student, Pulse& pulse);
/// Loads everything that the deck's `weights` keys name for this section.
void load_initial_weights(const config::Deck& deck, const workload::Scenario& scenario,
                          const WeightFiles& files, int section, parallel::ParameterStore& store,
                          Pulse& pulse);

}  // namespace maestro::train
