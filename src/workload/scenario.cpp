#include "workload/scenario.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.hpp"
#include "base/error.hpp"
#include "families/family.hpp"
#include "model/kind.hpp"
#include "parallel/low_rank_adapter.hpp"
#include "workload/stages.hpp"

namespace maestro::workload {

namespace {

graph::Section section_of(const config::Section& s, graph::Kind kind) {
    graph::Section section{.name = s.name,
                           .kind = kind,
                           .train = s.mode == "train",
                           .micro_batch = static_cast<int>(s.micro_batch),
                           .window = static_cast<int>(s.window),
                           .colocate_with = s.colocate_with,
                           .layout = s.layout};
    section.layout.cp_kind = s.cp_kind == "ring" ? ContextKind::ring : ContextKind::all_to_all;
    return section;
}

Tuning tuning_of(const config::Deck& deck, const config::Section& section) {
    const std::string& recompute = deck.recompute_of(section);
    return {
        .lora = section.lora.adapters,
        .frozen = parallel::frozen_with(section.lora.adapters, parallel::FrozenParameters(section.freeze)),
        .recompute = recompute == "layer"   ? Recompute::layer
                     : recompute == "cheap" ? Recompute::cheap
                                            : Recompute::none,
        .recompute_layers = static_cast<int>(section.recompute_layers)};
}

/// Makes the graph of the sections and edges, and checks it against the models. Without `sound`, checks the
/// layouts alone.
void connect(Scenario& scenario, std::vector<graph::Section> sections, std::vector<graph::Edge> edges,
             std::vector<graph::Refusal>& refusals, bool sound = true) {
    // Each check relies on what the one before has established, so that none reports what follows from an
    // earlier refusal.
    const std::size_t before = refusals.size();
    check_layouts(sections, scenario.models, refusals);
    if (!sound) return;
    if (refusals.size() == before)
        scenario.graph =
            graph::make_graph(std::move(sections), std::move(edges), refusals, scenario.graph.ranks_per_node);
    if (refusals.size() == before) check_edges(scenario, refusals);
    if (refusals.size() != before) return;
    scenario.layers.clear();
    for (int s = 0; s < static_cast<int>(scenario.graph.sections.size()); ++s) {
        const std::vector<Range> layers = layers_of_stages(scenario, s, scenario.sequence_length);
        scenario.layers.insert(scenario.layers.end(), layers.begin(), layers.end());
    }
}

/// Null where the family has no model of this kind.
const families::FolderModel* folder_model_of(const config::Model& m) {
    const model::ModelKind* const kind = model::find_kind(m.kind);
    const families::Family* const family = families::find_family(m.family);
    return kind && family ? family->find(kind->kind) : nullptr;
}

Scenario describe(const config::Deck& deck, config::Times times, std::vector<graph::Refusal>& refusals,
                  bool sound) {
    Scenario scenario;
    scenario.global_batch = deck.data.global_batch;
    scenario.sequence_length = deck.data.sequence_length;
    scenario.compute = deck.run.precision == "bf16"   ? DType::bf16
                       : deck.run.precision == "fp64" ? DType::f64
                                                      : DType::f32;
    scenario.tp_overlap = deck.run.tp_overlap == "always"  ? TpOverlap::always
                          : deck.run.tp_overlap == "never" ? TpOverlap::never
                                                           : TpOverlap::automatic;
    scenario.seed = deck.run.seed;
    std::vector<graph::Section> sections;
    for (const config::Section& s : deck.sections) {
        const auto model = deck.models.find(s.model);
        scenario.models.push_back(model != deck.models.end() && folder_model_of(model->second)
                                      ? spec_of(model->second)
                                      : model::ModelSpec{});
        scenario.distillation.push_back(s.distill);
        scenario.tuning.push_back(tuning_of(deck, s));
        graph::Kind kind = graph::Kind::any;
        if (times == config::Times::model)
            kind =
                model::Units(scenario.models.back()).encodes() ? graph::Kind::encoder : graph::Kind::language;
        sections.push_back(section_of(s, kind));
    }
    std::vector<graph::Edge> edges;
    for (const config::Edge& e : deck.edges)
        edges.push_back({.from_name = e.from,
                         .to_name = e.to,
                         .tensor = e.tensor == "hidden" ? EdgeTensor::hidden : EdgeTensor::embeddings});
    connect(scenario, std::move(sections), std::move(edges), refusals, sound);
    if (sound && refusals.empty() && times == config::Times::model)
        check_frozen(scenario, deck.sections, refusals);
    return scenario;
}

model::AttentionForm attention_of(const config::Model& m) {
    return {.heads = static_cast<int>(m.heads),
            .kv_heads = static_cast<int>(m.kv_heads),
            .head_dim = static_cast<int>(m.head_dim),
            .rope_theta = m.rope_theta,
            .rope_scaling = {.factor = m.rope_factor,
                             .low_frequency_factor = m.rope_low_frequency_factor,
                             .high_frequency_factor = m.rope_high_frequency_factor,
                             .original_length = m.rope_original_length},
            .rope_sections = m.rope_sections.empty()
                                 ? std::array<int, 3>{}
                                 : std::array{m.rope_sections[0], m.rope_sections[1], m.rope_sections[2]}};
}

}  // namespace

model::ModelSpec spec_of(const config::Model& m) {
    const families::FolderModel* const of_family = folder_model_of(m);
    MAESTRO_CHECK(of_family, "a {} model of family {}", m.kind, m.family);
    return {.kind = of_family->kind,
            .name = m.name,
            .family = m.family,
            .form = of_family->layer,
            .vision_form = of_family->vision,
            .layers = static_cast<int>(m.layers),
            .width = static_cast<int>(m.width),
            .mixers = {attention_of(m)},
            .mlp = static_cast<int>(m.mlp),
            .vocabulary = static_cast<int>(m.vocabulary),
            .norm_eps = m.norm_eps,
            .tie_embeddings = m.tie_embeddings,
            .experts = {.count = static_cast<int>(m.experts),
                        .per_token = static_cast<int>(m.experts_per_token),
                        .mlp = static_cast<int>(m.expert_mlp),
                        .shared_mlp = static_cast<int>(m.shared_expert_mlp),
                        .dense_layers = static_cast<int>(m.dense_layers),
                        .router = m.router == "sigmoid" ? model::ExpertsSpec::Router::sigmoid
                                                        : model::ExpertsSpec::Router::softmax,
                        .normalize = m.router_normalize,
                        .balance = m.balance == "loss"   ? model::ExpertsSpec::Balance::loss
                                   : m.balance == "bias" ? model::ExpertsSpec::Balance::bias
                                                         : model::ExpertsSpec::Balance::none,
                        .balance_strength = m.balance == "none" ? 0 : m.balance_strength},
            .picture_token = static_cast<int>(m.picture_token),
            .patch = static_cast<int>(m.patch),
            .merge = static_cast<int>(m.merge),
            .channels = static_cast<int>(m.channels),
            .output_width = static_cast<int>(m.output_width),
            .position_table = static_cast<int>(m.position_table),
            .deepstack = m.deepstack};
}

int Scenario::full_micro_batch(int section) const {
    return static_cast<int>(std::min<std::int64_t>(graph.sections[section].micro_batch, global_batch));
}

int Scenario::full_lane_micro_batch(int section) const {
    return static_cast<int>(std::min<std::int64_t>(graph.sections[section].lane_micro_batch(), global_batch));
}

Scenario make_scenario(const config::Deck& deck, config::Times times) {
    std::vector<graph::Refusal> refusals;
    Scenario scenario = describe(deck, times, refusals, true);
    if (refusals.empty()) return scenario;
    std::vector<std::string> messages;
    for (const graph::Refusal& refusal : refusals)
        messages.push_back(deck.places.message(refusal.key, refusal.what));
    throw Error(ExitCode::bad_deck, fmt::format("{}", fmt::join(messages, "\n")), Scope::all_ranks);
}

std::vector<graph::Refusal> check_scenario(const config::Deck& deck, config::Times times, bool sound) {
    std::vector<graph::Refusal> refusals;
    describe(deck, times, refusals, sound);
    return refusals;
}

Scenario on_nodes(Scenario base, int ranks_per_node) {
    base.graph.ranks_per_node = ranks_per_node;
    std::vector<graph::Section> sections = base.graph.sections;
    std::vector<graph::Refusal> refusals;
    Scenario scenario = with_sections(std::move(base), std::move(sections), refusals);
    MAESTRO_CHECK(refusals.empty(), "{}: {}", refusals.front().key, refusals.front().what);
    return scenario;
}

Scenario on_cluster(Scenario base, config::Cluster cluster) {
    const auto ranks_per_node = static_cast<int>(cluster.ranks_per_node);
    base.cluster = std::move(cluster);
    return on_nodes(std::move(base), ranks_per_node);
}

Scenario with_sections(Scenario base, std::vector<graph::Section> sections,
                       std::vector<graph::Refusal>& refusals) {
    MAESTRO_CHECK(sections.size() == base.graph.sections.size(), "{} sections for {}", sections.size(),
                  base.graph.sections.size());
    connect(base, std::move(sections), std::move(base.graph.edges), refusals);
    return base;
}

Scenario in_one_layout(const Scenario& base) {
    std::vector<graph::Section> sections = base.graph.sections;
    for (graph::Section& section : sections) {
        section.layout = {.dp = base.graph.world};
        section.window = 0;  // of the deck's layout
        section.colocate_with = &section == &sections.front() ? "" : sections.front().name;
    }
    std::vector<graph::Refusal> refusals;
    Scenario scenario = with_sections(base, std::move(sections), refusals);
    MAESTRO_CHECK(refusals.empty(), "{}: {}", refusals.front().key, refusals.front().what);
    return scenario;
}

}  // namespace maestro::workload
