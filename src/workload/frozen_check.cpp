// Whether the parts that sections freeze are parts of their models.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "workload/models.hpp"
#include "workload/scenario.hpp"

namespace maestro::workload {

namespace {

/// The smallest parts of a model: names of its trainable parameters without "weight" or "bias".
std::vector<std::string> smallest_parts(const Scenario& scenario, int section) {
    model::Role role = role_of(scenario, section, model::Stage{});
    role.frozen = {};
    const auto meta = backend::make_meta();
    const auto module = model::make_module(*meta, scenario.models[section], role,
                                           parallel::single_rank_mesh(), model::InitialWeights::zeros);
    std::vector<std::string> parts;
    for (const parallel::Parameter& p : module->parameters().parameters())
        if (p.trainable) parts.push_back(p.name.substr(0, p.name.rfind('.')));
    return parts;
}

/// What may be frozen, for a message: "embedding, norm, layers.N and ...".
std::string allowed_parts(const std::vector<std::string>& parts, const model::ModelSpec& model) {
    // What a layer consists of is listed once, of the first layer that has it.
    std::vector<std::string> of_model, of_layer;
    std::set<std::string> names;
    const auto add = [&](std::vector<std::string>& list, const std::string& part, std::size_t name) {
        if (names.insert(part.substr(name)).second) list.push_back(part);
    };
    const std::string layers = "layers.";
    for (const std::string& part : parts)
        if (part.find(".lora_") != std::string::npos) {
            continue;
        } else if (part.starts_with(layers)) {
            const std::size_t name = part.find('.', layers.size()) + 1;
            add(of_layer, part.substr(0, part.find('.', name)), name);
            add(of_layer, part, name);
        } else {
            add(of_model, part, 0);
        }
    const bool tied = !model::Units(model).encodes() && model.tie_embeddings;
    return fmt::format("{}{}; layers.N and layers.A-B, of layers 0 to {}; parts of layers: {}",
                       fmt::join(of_model, ", "), tied ? " (embedding is the head as well)" : "",
                       model.layers - 1, fmt::join(of_layer, ", "));
}

}  // namespace

void check_frozen(const Scenario& scenario, const std::vector<config::Section>& sections,
                  std::vector<graph::Refusal>& refusals) {
    for (std::size_t s = 0; s < sections.size(); ++s) {
        if (sections[s].freeze.empty()) continue;
        const model::ModelSpec& model = scenario.models[s];
        const std::string key = fmt::format("section.{}.freeze", sections[s].name);
        const std::vector<std::string> parts = smallest_parts(scenario, static_cast<int>(s));
        const auto is_part = [&](const std::string& part) {
            const parallel::FrozenParameters of_part({part});
            return std::any_of(parts.begin(), parts.end(),
                               [&](const std::string& smallest) { return of_part.contains(smallest); });
        };
        for (const std::string& part : sections[s].freeze) {
            const std::vector<std::string> ends = parallel::ends_of_range(part);
            // An adapter is trained as a whole, or frozen with its layer.
            if (part.find(".lora_") != std::string::npos || !is_part(part) ||
                !std::all_of(ends.begin(), ends.end(), is_part))
                refusals.push_back({key, fmt::format("'{}' is no part of model.{}; allowed: {}", part,
                                                     model.name, allowed_parts(parts, model))});
        }
        const auto frozen = [&](const std::string& smallest) {
            return scenario.tuning[s].frozen.contains(smallest);
        };
        if (std::all_of(parts.begin(), parts.end(), frozen))
            refusals.push_back(
                {key,
                 fmt::format("leaves nothing of model.{} to train; use mode = \"forward\"", model.name)});
    }
}

}  // namespace maestro::workload
