// The rows of metrics.h5 of a run that has ended or goes on, checked.
#pragma once

#include <string>

#include "graph/section_graph.hpp"
#include "io/metrics_file.hpp"

namespace maestro::recorded {

/// Returns RUN/metrics.h5. Error(input_missing) where there is no such file; `option` is named in it.
std::string metrics_of(const std::string& run, const char* option);

/// The rows of RUN/metrics.h5; times of an emulated run in seconds of its cluster. `option` is named in
/// errors: Error(input_missing) where there is no such file, Error(bad_data) where its sections are not
/// those of the graph, or where a row is not valid.
io::Rows read_rows(const std::string& run, const char* option, const graph::SectionGraph& graph);

}  // namespace maestro::recorded
