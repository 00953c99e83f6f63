// --exchange-images: a model that looks at the pictures does worse when each sample shows something else than
// its text describes.
#pragma once

#include "base/pulse.hpp"
#include "comm/communicator.hpp"
#include "data/sample_file.hpp"

namespace maestro::train {

/// Collective. Replaces every picture of `samples` by one with another label, where a picture's label is the
/// text after it that counts for exact match. Sizes change with the pictures. Throws on all ranks
/// Error(bad_data) where more than half of the pictures have the same label, Error(io_error).
void exchange_pictures(const comm::Communicator& world, data::SampleFile& samples, Pulse& pulse);

}  // namespace maestro::train
