// How much a choice of plan loses where the rates of the cluster file are wrong.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "plan/search.hpp"

namespace maestro::plan {

/// The ranks that are paid for a plan.
using PaidRanks = std::function<int(const Plan&)>;

/// Sets Plan::worst and Plan::worst_rates of plans for the same steps: each is simulated on clusters of which
/// one kind of rate is another than the file says, and loses what its step takes more of the time of paid
/// ranks than that of the best of these plans there.
void find_worst_losses(const Subject& subject, std::vector<Plan>& plans, const std::string& policy,
                       const PaidRanks& paid);

/// Puts the plan first that loses least, where rates are as the file says or where they are wrong.
void most_robust_first(std::vector<Plan>& plans, const PaidRanks& paid);

}  // namespace maestro::plan
