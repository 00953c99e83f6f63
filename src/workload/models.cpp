#include "workload/models.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "model/kind.hpp"

namespace maestro::workload {

namespace {

/// Whether a gradient is wanted before a layer of the section: of its parameters, or of an edge into it.
bool anything_trained_before(const Scenario& scenario, int section, int layer) {
    const parallel::FrozenParameters& frozen = scenario.tuning[section].frozen;
    for (const graph::Edge& e : scenario.graph.edges)
        if (e.to == section && e.gradient) return true;
    const model::ModelSpec& model = scenario.models[section];
    const std::vector<std::string> before = model::kind_of(model).before_layers(model);
    bool trained = std::any_of(before.begin(), before.end(),
                               [&](const std::string& part) { return !frozen.contains_part(part); });
    for (int l = 0; l < layer && !trained; ++l) trained = !frozen.contains_part(fmt::format("layers.{}", l));
    return trained && scenario.graph.sections[section].train;
}

/// The terms of a section that computes the loss: cross entropy, and the divergence from the teacher that one
/// of its input edges brings.
std::vector<model::LossTerm> loss_terms_of(const config::Distill& distill,
                                           const std::vector<model::InputSpec>& inputs) {
    std::vector<model::LossTerm> teachers;
    for (std::size_t e = 0; e < inputs.size(); ++e)
        if (inputs[e].tensor == EdgeTensor::hidden && distill.alpha > 0)
            teachers.push_back({.kind = model::LossTerm::Kind::forward_kl,
                                .edge = static_cast<int>(e),
                                .weight = distill.alpha,
                                .temperature = distill.temperature});
    std::vector<model::LossTerm> terms;
    if (teachers.empty())
        terms.push_back({});
    else if (distill.alpha < 1)
        terms.push_back({.weight = 1 - distill.alpha});
    terms.insert(terms.end(), teachers.begin(), teachers.end());
    return terms;
}

}  // namespace

model::Role role_of(const Scenario& scenario, int stage) {
    const graph::Stage& of = scenario.graph.stages[stage];
    const Range layers = scenario.layers[stage];
    return role_of(scenario, of.section,
                   {.index = of.index,
                    .count = scenario.graph.sections[of.section].layout.stage_count(),
                    .first_layer = static_cast<int>(layers.begin),
                    .layers = static_cast<int>(layers.size())});
}

model::Role role_of(const Scenario& scenario, int section, model::Stage part) {
    const graph::Section& s = scenario.graph.sections[section];
    const bool first = part.first(), last = part.last();
    model::Role role{.section = s.name,
                     .inputs = {},
                     .emits = !s.loss || !last,
                     .output_width = last ? 0 : scenario.models[section].width,
                     .trained = s.train,
                     .frozen = scenario.tuning[section].frozen,
                     .needs_backward = s.backward,
                     .markers = scenario.markers,
                     .seed = scenario.seed,
                     .compute = scenario.compute,
                     .recompute = scenario.tuning[section].recompute,
                     .recompute_layers = scenario.tuning[section].recompute_layers,
                     .tp_overlap = scenario.tp_overlap,
                     .stage = std::move(part),
                     .lora = scenario.tuning[section].lora};
    for (const graph::Edge& e : scenario.graph.edges) {
        if (e.from == section && last)
            // An encoder projects its output to the width of the section that it feeds; hidden states keep
            // theirs.
            role.output_width =
                model::row_width({e.tensor, scenario.models[section]}, scenario.models[e.to].width);
        if (e.to != section) continue;
        // In the order of SectionGraph::stage_edges. Embeddings enter the first stage. A later one needs to
        // know only how many rows they are.
        const bool embeddings = e.tensor == EdgeTensor::embeddings;
        if (embeddings ? first : last) role.inputs.push_back({e.tensor, scenario.models[e.from], e.gradient});
        if (embeddings && !first) role.stage.expansions.emplace_back(scenario.models[e.from]);
    }
    if (s.loss && last) role.loss_terms = loss_terms_of(scenario.distillation[section], role.inputs);
    if (!first)
        role.inputs.push_back({EdgeTensor::stream, scenario.models[section],
                               anything_trained_before(scenario, section, role.stage.first_layer)});
    return role;
}

std::vector<model::Units> encoders_of(const Scenario& scenario, int section) {
    std::vector<model::Units> encoders;
    for (const graph::Edge& e : scenario.graph.edges)
        if (e.to == section && e.tensor == EdgeTensor::embeddings)
            encoders.emplace_back(scenario.models[e.from]);
    return encoders;
}

SampleTable table_of(const Scenario& scenario, const data::Samples& samples) {
    std::vector<SampleTable::Section> sections;
    for (int s = 0; s < static_cast<int>(scenario.graph.sections.size()); ++s)
        sections.push_back({model::Units(scenario.models[s]), encoders_of(scenario, s)});
    return SampleTable(samples.index(), std::move(sections));
}

void check_targets(const data::Samples& samples) {
    for (std::int64_t i = 0; i < samples.size(); ++i)
        if (samples.index().weight(i) > 0) return;
    throw Error(ExitCode::bad_data,
                fmt::format("{}: no token of its {} samples has a loss weight, so that there is nothing to "
                            "learn and no loss; {}",
                            samples.name(), samples.size(),
                            samples.contents() ? "make the samples again with weights for the tokens to learn"
                                               : "give samples of at least two tokens, or targets"));
}

void check_samples(const Scenario& scenario, const data::Samples& samples, bool for_training) {
    const std::string& path = samples.name();
    if (const std::optional<data::ContentRange> range = samples.contents())
        for (const model::ModelSpec& m : scenario.models)
            if (const std::string wrong =
                    model::kind_of(m).check_samples(m, {range->vocabulary, range->channels});
                !wrong.empty())
                throw Error(ExitCode::bad_data, fmt::format("{}: {}", path, wrong));
    for (const graph::Edge& e : scenario.graph.edges) {
        const model::ModelSpec& m = scenario.models[e.to];
        const std::int32_t marker = samples.markers().of(Item::Kind::picture);
        if (e.tensor == EdgeTensor::embeddings &&
            model::Units(scenario.models[e.from]).reads(Item::Kind::picture) && m.picture_token >= 0 &&
            m.picture_token != marker)
            throw Error(
                ExitCode::bad_data,
                fmt::format("{}: token {} marks pictures, in model.{} it is {} (picture_token); make the "
                            "samples again with that marker",
                            path, marker, m.name, m.picture_token));
    }
    check_targets(samples);
    if (for_training && samples.size() < scenario.global_batch)
        throw Error(ExitCode::bad_deck,
                    fmt::format("data.global_batch: {} samples, but {} holds {}; it may be at most that",
                                scenario.global_batch, path, samples.size()));
}

void check_lengths(const Scenario& scenario, const SampleTable& table, const std::string& name) {
    for (std::size_t s = 0; s < scenario.graph.sections.size(); ++s)
        if (scenario.graph.sections[s].loss)
            table.for_each([&](std::int64_t i) {
                if (const std::int64_t length = table.length(i, static_cast<int>(s));
                    length > scenario.sequence_length)
                    throw Error(
                        ExitCode::bad_data,
                        fmt::format("{}: sample {} has {} tokens with its pictures, data.sequence_length "
                                    "is {}; raise it or cut the sample",
                                    name, i, length, scenario.sequence_length),
                        Scope::all_ranks);
            });
}

}  // namespace maestro::workload
