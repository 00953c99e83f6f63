// What the deck says of each section, as the model's own structs.
#pragma once

#include <cstdint>

#include "config/deck.hpp"
#include "data/sample_file.hpp"
#include "model/module.hpp"
#include "workload/sample_table.hpp"

namespace maestro::workload {

model::ModelSpec spec_of(const config::Deck& deck, int section);
model::Role role_of(const config::Deck& deck, int section, std::int32_t marker);
/// Patches of a vision section; patch 0 for the others.
model::Geometry geometry_of(const config::Deck& deck, int section);
/// By which a language section expands markers: that of the embeddings that reach it, or its student's.
model::Geometry expansion_of(const config::Deck& deck, int section);
/// The samples as the deck's sections see them.
SampleTable table_of(const config::Deck& deck, const data::SampleFile& samples);
/// Refuses samples that do not fit the deck: token ids, channels, lengths, number. Error(bad_data or
/// bad_deck).
void check_samples(const config::Deck& deck, const data::SampleFile& samples, bool for_training = true);

/// Refuses samples longer than data.sequence_length. Error(bad_data, all_ranks).
void check_lengths(const config::Deck& deck, const SampleTable& table);

}  // namespace maestro::workload
