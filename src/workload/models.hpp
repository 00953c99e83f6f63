// The role of each stage of a scenario, and the sizes that its samples have in the sections.
#pragma once

#include <cstdint>
#include <string>

#include "data/samples.hpp"
#include "model/module.hpp"
#include "workload/sample_table.hpp"
#include "workload/scenario.hpp"

namespace maestro::workload {

/// The role of a stage.
model::Role role_of(const Scenario& scenario, int stage);
/// The same of any part of a section's model, whatever stages its layout has.
model::Role role_of(const Scenario& scenario, int section, model::Stage part);
/// Returns the units of the encoders whose output rows replace the markers of a section, in the order of
/// their edges.
std::vector<model::Units> encoders_of(const Scenario& scenario, int section);
/// `samples` must outlive the table.
SampleTable table_of(const Scenario& scenario, const data::Samples& samples);
/// Refuses samples without any target, which is a token with a loss weight. Error(bad_data).
void check_targets(const data::Samples& samples);
/// Refuses samples that do not fit the models or the batch (token ids, channels, number), and samples without
/// any target. Error(bad_data or bad_deck).
void check_samples(const Scenario& scenario, const data::Samples& samples, bool for_training = true);

/// Refuses samples longer than data.sequence_length. Error(bad_data, all_ranks).
/// `name` of the samples is named in the message.
void check_lengths(const Scenario& scenario, const SampleTable& table, const std::string& name);

}  // namespace maestro::workload
