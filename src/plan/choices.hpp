// What the planner chooses for a section, and which choices there are.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "graph/section_graph.hpp"
#include "workload/scenario.hpp"

namespace maestro::plan {

/// The keys of a section that a plan sets. Windows are chosen for each plan from the memory that it leaves.
struct Choice {
    graph::Layout layout;
    int micro_batch = 1;  ///< samples
    Recompute recompute = Recompute::none;
    int recompute_layers = 0;  ///< see workload::Tuning
    bool operator==(const Choice&) const = default;
};

/// Whether a plan must keep the deck's value of a key, given by its full name ("section.vision.layout.dp").
using IsFixed = std::function<bool(const std::string& key)>;

/// Whether a plan chooses what backward computes again in a section.
bool is_recompute_free(const workload::Scenario& scenario, int section, const IsFixed& is_fixed);

/// Returns the choices of a section on at most `ranks` ranks that its model allows: every dp; tp and ep as
/// they divide the model; etp as it divides tp, too; cp 1, 2, 4, ... of both kinds; pp up to 8 and the powers
/// of two above, in 1, 2 or 4 chunks; micro-batches of 1, 2, 4, 8 and 16 samples; each kind of recomputation.
/// Where the deck says another value, that is among them too.
std::vector<Choice> choices_of(const workload::Scenario& scenario, int section, int ranks,
                               const IsFixed& is_fixed);

/// Returns by section itself, as the section whose ranks it has: each on separate ranks.
std::vector<int> apart(std::size_t sections);

/// Returns the scenario with these choices, by section, for sections on the ranks of `host_of[section]`, or
/// on separate ones where that is the section itself. What does not fit is appended to `refusals`; the result
/// may be used only if nothing was.
workload::Scenario with_choices(workload::Scenario base, const std::vector<Choice>& choices,
                                const std::vector<int>& host_of, std::vector<graph::Refusal>& refusals);

/// "dp 8 tp 2 pp 4x2 ep 8 mb 4 cheap"; degrees of 1 are left out but for dp.
std::string describe(const Choice& choice);
const char* word_of(Recompute recompute);

}  // namespace maestro::plan
