// The search for the layouts of all sections under which a step is shortest. Pure: no messages, files or
// clock.
//
// Exact on two levels. What a section's lanes work in a step depends on its own choice alone, so that each
// choice is rated once, by the model's code. A plan of all sections is bounded by the largest of these times;
// plans are taken in the order of their bounds, given their real places on nodes and their memory, bounded
// again by the scheduler's lower bound and the updates of weights, and simulated in that order. The search
// ends where no bound is below the best simulated time (best-first branch and bound; Lawler and Wood,
// "Branch-and-bound methods: a survey", 1966).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plan/rating.hpp"
#include "workload/estimate.hpp"

namespace maestro::plan {

/// Choices for all sections, and how long their steps take.
struct Plan {
    std::vector<Choice> choices = {};  ///< by section
    std::vector<int> host_of = {};     ///< by section: the one whose ranks it shares, or itself
    int ranks = 0;
    double bound_s = 0;               ///< no step of the plan is shorter; sum over the steps
    double step_s = 0;                ///< sum over the steps
    double tokens = 0;                ///< over the steps
    std::vector<int> windows = {};    ///< by stage
    std::vector<double> memory = {};  ///< bytes of the fullest rank of each section
    std::vector<double> busy = {};    ///< by section: share of the step in which its lanes run its tasks
    std::string critical = {};        ///< the section whose lanes have most work
    double end_share = 0;             ///< of the step, between the last task and the last update of weights
    /// How much longer than another of the best plans it takes where the rates of the cluster file are wrong
    /// in the worst way that was tried (robustness.hpp): a share of the other's time.
    std::optional<double> worst = {};
    std::string worst_rates = {};      ///< which those are
    workload::Scenario scenario = {};  ///< with all windows
};

/// What a search has found.
struct Found {
    std::vector<Plan> plans = {};  ///< simulated, the best first
    double layouts = 0;            ///< choices of all sections together that fit the ranks
    int bounded = 0;               ///< of these, given places and memory
    int simulated = 0;
    double bound_s = 0;         ///< no plan of these choices has shorter steps; sum over the steps
    bool proved = false;        ///< no other plan of these choices is faster
    int no_room = 0;            ///< plans that do not fit into memory
    double least_memory = 0;    ///< bytes that the fullest rank of one of these lacked least
    std::string shortage = {};  ///< of that plan
};

struct Limits {
    int ranks = 1;        ///< of the plan, at most
    int keep = 1;         ///< plans that are returned
    bool all = false;     ///< simulates and returns every plan that fits
    int simulated = 100;  ///< plans that are simulated at most
    int bounded = 6000;   ///< plans that are given places and memory at most
    int slow = 1000;      ///< plans that are put off, because a quick order of their tasks takes long
    std::string policy = "wavefront";
    bool one_layout = false;  ///< all sections on all ranks in one layout, as a framework without sections
};
/// Searches the plans of these ratings. `known`: plans that were simulated before, which count as found.
Found search(const Subject& subject, const Ratings& ratings, const Limits& limits,
             std::vector<Plan> known = {});

/// Whether sections share the ranks of `host_of[section]` only as the deck has it, where that is fixed.
bool keeps_colocation(const Subject& subject, const std::vector<int>& host_of);
/// Returns the simulated plan of these choices, or nothing where they do not fit.
std::optional<Plan> plan_of(const Subject& subject, std::vector<Choice> choices, std::vector<int> host_of,
                            const std::string& policy);
/// Returns the choices of the scenario's sections, and whose ranks each has.
std::pair<std::vector<Choice>, std::vector<int>> choices_of(const workload::Scenario& scenario);

/// Returns the plan with the times of its steps under a policy.
Plan simulated(const Subject& subject, Plan plan, const std::string& policy);

}  // namespace maestro::plan
