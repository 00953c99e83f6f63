// What each choice of a section takes and needs at least, whatever the other sections have: its work and its
// memory, by the model's code. Pure.
#pragma once

#include <vector>

#include "plan/section_bounds.hpp"

namespace maestro::plan {

struct Ratings {
    /// By section: the choices that may fit into memory, in ascending order of busiest_s.
    std::vector<std::vector<Rated>> sections = {};
    std::vector<Rated> smallest = {};  ///< by section: of all choices the one that needs least memory
    double left_out_s = kNone;         ///< no plan with a choice that is not rated has a shorter step
};
/// Rates the choices of every section on up to `ranks` ranks: `all`, or without those that are slow by far.
Ratings rate(const Subject& subject, int ranks, bool all = true);

}  // namespace maestro::plan
