// Plans in which only the first layers of each stage recompute. The search knows recomputation of all layers
// of a section or of none; this lets as few of them recompute as the memory allows. Pure.
#pragma once

#include <string>

#include "plan/search.hpp"

namespace maestro::plan {

/// Replaces plans of a search by faster ones in the same layouts, in which a section recomputes in another
/// way or in fewer layers. Sections follow one another, those first whose lanes work longest. Of each, and of
/// both kinds of recomputation, it simulates the fewest layers that fit into memory, and the fewest with
/// which the windows that the memory then allows are wider. What `--fix` names stays. `policy`: of the
/// search. Of a search with little effort (effort_of()), only the best plans are tried. Adds to the counts of
/// what was bounded and simulated. `bound_s` and `proved` still tell of plans that recompute all layers of a
/// section or none.
void recompute_fewer_layers(const Subject& subject, const std::string& policy, Found& found);

}  // namespace maestro::plan
