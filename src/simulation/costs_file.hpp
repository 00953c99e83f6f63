// COSTS.csv: task times of the samples of one step, from any source (docs/file_formats.md).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "graph/section_graph.hpp"
#include "schedule/problem/problem.hpp"

namespace maestro::simulation {

/// Lines `sample,section,forward_s,backward_s` under that header, as samples in ascending order of their
/// numbers. The time of a section is divided evenly among its stages, unless the header has a fifth column
/// `stage`: then every line is of one stage. `path` is named in errors. Throws Error(bad_data, all_ranks)
/// with up to ten problems, a line each: "PATH:LINE: what; what is allowed".
std::vector<schedule::SampleCost> parse_costs(std::string_view text, const std::string& path,
                                              const graph::SectionGraph& graph);

/// The same of a file. Error(input_missing) where it cannot be read.
std::vector<schedule::SampleCost> read_costs(const std::string& path, const graph::SectionGraph& graph);

}  // namespace maestro::simulation
