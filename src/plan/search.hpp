// The search for the layouts of all sections under which a step is shortest. Pure: no messages, files or
// clock.
//
// It works on two levels. What a section's lanes work in a step depends on its own choice alone, so that each
// choice is rated once, by the model's code. Plans of all sections follow from choices that fit each other.
// First, those that an estimate holds to be fast are given their real places on nodes and their memory, their
// tasks are ordered by a policy that takes little time, and the fastest of them are simulated. Then all plans
// that may be faster than the best of these are looked at in the order of their bounds: the largest time of a
// section's lanes, and the scheduler's lower bound with the updates of weights. The search has proved its
// plan where no bound is below its time (best-first branch and bound; Lawler and Wood, "Branch-and-bound
// methods: a survey", 1966). Where there are too many of them, it only tells how much faster another may be.
#pragma once

#include <string>
#include <vector>

#include "plan/candidates.hpp"
#include "plan/simulated_plan.hpp"

namespace maestro::plan {

/// What a search has found.
struct Found {
    std::vector<Plan> plans = {};  ///< simulated, the best first
    double layouts = 0;            ///< choices of all sections together that fit the ranks
    int bounded = 0;               ///< of these, given places and memory
    int simulated = 0;
    double step_s = 0;   ///< of the best plan on the steps of the search; sum over them
    double bound_s = 0;  ///< no plan of these choices has shorter ones
    /// By which share of its time a plan may be faster than the best one on these steps.
    double gap() const { return proved ? 0 : 1 - bound_s / step_s; }
    bool proved = false;        ///< no other plan of these choices is faster
    int no_room = 0;            ///< plans that do not fit into memory
    double least_memory = 0;    ///< bytes that the fullest rank of one of these lacked least
    std::string shortage = {};  ///< of that plan
};

struct Limits {
    int ranks = 1;         ///< of the plan, at most
    int keep = 1;          ///< plans that are returned
    bool all = false;      ///< simulates and returns every plan that fits
    int simulated = 100;   ///< plans that are simulated at most
    int bounded = 6000;    ///< plans that are looked at in the order of their bounds, if there are no more
    int likely = 96;       ///< plans that are looked at before, in the order of their likely times
    int some = 48;         ///< of these, and of others where there are too many, as many are simulated
    int neighbours = 128;  ///< plans that are looked at for each improvement of one
    std::string policy = "wavefront";
    bool one_layout = false;  ///< all sections on all ranks in one layout, as a framework without sections
};
/// The share of the usual effort that a search may take, because steps with thousands of samples take long to
/// estimate and to order: at most 1.
double effort_of(const Subject& subject);
/// Searches the plans of these ratings; fewer of them where a step has thousands of samples. `known`: plans
/// that were simulated before, which count as found.
Found search(const Subject& subject, const Ratings& ratings, const Limits& limits,
             std::vector<Plan> known = {});

}  // namespace maestro::plan
