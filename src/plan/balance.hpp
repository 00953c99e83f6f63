// The layers that the stages of a section have in a plan.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "plan/subject.hpp"

namespace maestro::plan {

/// The layers of stages as they are balanced, once for each number of stages of a section. The subject must
/// outlive it.
class Balance {
public:
    explicit Balance(const Subject& subject) : subject_(subject) {}
    /// Returns the layers of each stage of a section with this choice.
    const std::vector<int>& layers_of(std::size_t section, const Choice& choice);
    /// Returns the scenario of the choices with balanced stages; see with_choices().
    workload::Scenario scenario(std::vector<Choice> choices, const std::vector<int>& host_of,
                                std::vector<graph::Refusal>& refusals);

private:
    using Key = std::tuple<std::size_t, int, Recompute, int>;
    const Subject& subject_;
    std::map<Key, std::vector<int>> layers_;
};

}  // namespace maestro::plan
