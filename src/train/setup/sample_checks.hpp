// Whether a file of samples was made for the models that a run trains: by the tokenizer of their folders.
#pragma once

#include <string>
#include <vector>

#include "data/sample_file.hpp"
#include "train/setup/run_context.hpp"

namespace maestro::train {

/// Compares the tokenizer of the samples with that of each folder that a language section starts from, by the
/// ids of all tokens. Rank 0 reads them. Collective; throws on all ranks Error(bad_data) where they differ or
/// one cannot be read, and Error(io_error). Returns what the log should say on rank 0.
std::vector<std::string> check_tokenizer(const RunContext& context, const data::SampleFile& samples);

/// Refuses validation samples without targets or of another tokenizer before a training begins, if the file
/// exists already; anything else is left to `evaluate`. Collective; the same.
void check_validation(const RunContext& context);

}  // namespace maestro::train
