#include "plan/balance.hpp"

#include <utility>

#include "workload/stages.hpp"

namespace maestro::plan {

const std::vector<int>& Balance::layers_of(std::size_t section, const Choice& choice) {
    if (!choice.layout.layers.empty()) return choice.layout.layers;
    const auto [known, is_new] = layers_.try_emplace(
        Key(section, choice.layout.stage_count(), choice.recompute, choice.recompute_layers));
    if (!is_new) return known->second;
    // They depend on neither the other degrees nor the other sections.
    std::vector<Choice> choices(subject_.scenario.graph.sections.size());
    choices[section].layout.pp = choice.layout.stage_count();
    choices[section].recompute = choice.recompute;
    choices[section].recompute_layers = choice.recompute_layers;
    std::vector<graph::Refusal> refusals;
    workload::Scenario made = with_choices(subject_.scenario, choices, apart(choices.size()), refusals);
    if (!refusals.empty()) return known->second;
    workload::balance_stages(made, subject_.table);
    for (int k = 0; k < choice.layout.stage_count(); ++k)
        known->second.push_back(
            static_cast<int>(made.layers[made.graph.stage_of(static_cast<int>(section), k)].size()));
    return known->second;
}

workload::Scenario Balance::scenario(std::vector<Choice> choices, const std::vector<int>& host_of,
                                     std::vector<graph::Refusal>& refusals) {
    for (std::size_t s = 0; s < choices.size(); ++s)
        if (choices[s].layout.stage_count() > 1) choices[s].layout.layers = layers_of(s, choices[s]);
    return with_choices(subject_.scenario, choices, host_of, refusals);
}

}  // namespace maestro::plan
