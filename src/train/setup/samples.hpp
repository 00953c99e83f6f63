// Opens the file of samples that a run reads, sharing the work among the ranks.
#pragma once

#include <memory>
#include <string>

#include "base/pulse.hpp"
#include "comm/communicator.hpp"
#include "data/sample_file.hpp"

namespace maestro::train {

/// Opens a file of samples on every rank. Collective; throws on all ranks what SampleFile throws on one.
std::shared_ptr<data::SampleFile> open_samples(const comm::Communicator& world, const std::string& path,
                                               Pulse& pulse);
/// Lets the index of every rank know where markers stand, each rank reading its share of the tokens. The
/// same.
void find_markers(const comm::Communicator& world, data::SampleFile& samples, Pulse& pulse);

}  // namespace maestro::train
