// A plan of all sections, and how long its steps take. Pure.
#pragma once

#include <cstddef>
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
    double ends_s = 0;                ///< when the last task of each section ends, summed over all of them
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

/// Times that differ by less than this share of them are the same but for rounding.
inline constexpr double kRounding = 1e-9;
/// Whether two plans have the same choices, and the same sections on the same ranks.
bool have_same_choices(const Plan& a, const Plan& b);
/// Inserts a plan into plans that ascend by step_s, and by ranks where that is the same. Returns whether it
/// did: not where one of them has the same choices.
bool insert(std::vector<Plan>& plans, Plan plan);

/// Returns the policy by whose steps those under `policy` are estimated, because it plans them in little
/// time.
std::string quick_policy(const std::string& policy);
/// Returns the plan with the times of its steps under a policy.
Plan simulated(const Subject& subject, Plan plan, const std::string& policy);
/// Returns the seconds of the k-th step alone, of which the estimate is known.
double seconds_of_step(const Subject& subject, const workload::Scenario& scenario,
                       const workload::StepEstimate& step, std::size_t k, const std::string& policy);
/// Returns the simulated plan of these choices, or nothing where they do not fit.
std::optional<Plan> plan_of(const Subject& subject, std::vector<Choice> choices, std::vector<int> host_of,
                            const std::string& policy);
/// Returns the choices of the scenario's sections, and whose ranks each has.
std::pair<std::vector<Choice>, std::vector<int>> choices_of(const workload::Scenario& scenario);

}  // namespace maestro::plan
