// What a section starts from: the samples it reads and the weights that the deck names.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "data/sample_file.hpp"
#include "model/parameters.hpp"
#include "train/launch.hpp"

namespace maestro::train {

/// Opens a file of samples on every rank, each of which checks its share of the tokens. Collective; throws on
/// all ranks what SampleFile throws on one.
std::unique_ptr<data::SampleFile> open_samples(const comm::Communicator& world, const std::string& path,
                                               Pulse& pulse);
/// Lets the index of every rank know where markers stand, each rank reading its share of the tokens. The
/// same.
void find_markers(const comm::Communicator& world, data::SampleFile& samples, Pulse& pulse);

/// Verified checkpoints by what the deck's `weights` keys say.
using WeightFiles = std::map<std::string, std::string>;
/// Collective. Error(input_missing, bad_data, io_error).
WeightFiles find_weights(const Launch& launch);

/// The section of that name in a verified checkpoint, or the only one there is. Error(bad_data).
std::string section_in(const std::string& checkpoint, const std::string& section);
/// Weights of a verified checkpoint into a store, by name. Refreshes the compute copies. Error(bad_data,
/// io_error), as the next two.
void load_weights(const std::string& checkpoint, const std::string& section, model::ParameterStore& store,
                  Pulse& pulse);
/// The output head of a teacher, from its weights, into the student's "teacher_head.weight".
void load_teacher_head(const std::string& checkpoint, const std::string& teacher, bool tied,
                       model::ParameterStore& student, Pulse& pulse);
/// Everything that the deck's `weights` keys name for this section.
void load_initial_weights(const Launch& launch, const WeightFiles& files, int section,
                          model::ParameterStore& store);

}  // namespace maestro::train
