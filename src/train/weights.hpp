// What a section starts from: the samples it reads and the weights that the deck names.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.hpp"
#include "config/deck.hpp"
#include "data/sample_file.hpp"
#include "model/parameters.hpp"

namespace maestro::train {

/// Opens a file of samples on every rank, each of which checks its share of the tokens. Collective; throws on
/// all ranks what SampleFile throws on one.
std::unique_ptr<data::SampleFile> open_samples(const comm::Communicator& world, const std::string& path);

/// Weights of a checkpoint into a store, by name: the section's own, or the only section there is. Refreshes
/// the compute copies. Error(input_missing, bad_data).
void load_weights(const std::string& path, const std::string& section, model::ParameterStore& store);
/// The output head of a teacher, from its weights, into the student's "teacher_head.weight".
void load_teacher_head(const std::string& path, const std::string& teacher, bool tied,
                       model::ParameterStore& student);
/// Everything that the deck's `weights` keys name for this section.
void load_initial_weights(const config::Deck& deck, int section, model::ParameterStore& store);

}  // namespace maestro::train
