// What the deck says of each section, as the model's own structs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "config/deck.hpp"
#include "data/sample_file.hpp"
#include "model/module.hpp"

namespace maestro::train {

model::ModelSpec spec_of(const config::Deck& deck, int section);
model::Role role_of(const config::Deck& deck, int section, std::int32_t marker);
/// Patches of a vision section; patch 0 for the others.
model::Geometry geometry_of(const config::Deck& deck, int section);
/// By which a language section expands markers: that of the embeddings that reach it, or its student's.
model::Geometry expansion_of(const config::Deck& deck, int section);
/// Opens a file of samples on every rank, each of which checks its share of the tokens. Collective; throws on
/// all ranks what SampleFile throws on one.
std::unique_ptr<data::SampleFile> open_samples(const comm::Communicator& world, const std::string& path);
/// Refuses samples that do not fit the deck: token ids, channels, lengths, number. Error(bad_data or
/// bad_deck).
void check_samples(const config::Deck& deck, const data::SampleFile& samples, bool for_training = true);

/// Weights of a checkpoint into a store, by name: the section's own, or the only section there is. Refreshes
/// the compute copies. Error(input_missing, bad_data).
void load_weights(const std::string& path, const std::string& section, model::ParameterStore& store);
/// The output head of a teacher, from its weights, into the student's "teacher_head.weight".
void load_teacher_head(const std::string& path, const std::string& teacher, bool tied,
                       model::ParameterStore& student);
/// Everything that the deck's `weights` keys name for this section.
void load_initial_weights(const config::Deck& deck, int section, model::ParameterStore& store);

}  // namespace maestro::train
