// Where the samples of a deck come from: a file, or their sizes alone from a CSV file or a distribution.
#pragma once

#include "config/deck.hpp"
#include "config/table_reader.hpp"

namespace maestro::config {

/// Adds an error unless data.train and [data.lengths] name one source; with `needs_samples` there must be
/// one. The tables and overrides have been read.
void check_source(const Data& data, bool needs_samples, TableReader& tables);
/// Fills in the defaults of a distribution that depend on other keys, and checks its keys against each other.
void finish_distribution(Data& data, TableReader& tables);

}  // namespace maestro::config
