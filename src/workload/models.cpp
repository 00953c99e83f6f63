#include "workload/models.hpp"

#include <fmt/format.h>

namespace maestro::workload {

model::ModelSpec spec_of(const config::Deck& deck, int section) {
    const config::Model& m = deck.model_of(section);
    return {.kind = m.kind == "vision" ? model::ModelSpec::Kind::vision : model::ModelSpec::Kind::language,
            .name = m.name,
            .layers = static_cast<int>(m.layers),
            .width = static_cast<int>(m.width),
            .heads = static_cast<int>(m.heads),
            .kv_heads = static_cast<int>(m.kv_heads),
            .head_dim = static_cast<int>(m.head_dim),
            .mlp = static_cast<int>(m.mlp),
            .vocabulary = static_cast<int>(m.vocabulary),
            .rope_theta = m.rope_theta,
            .norm_eps = m.norm_eps,
            .tie_embeddings = m.tie_embeddings,
            .patch = static_cast<int>(m.patch),
            .merge = static_cast<int>(m.merge),
            .channels = static_cast<int>(m.channels)};
}

model::Role role_of(const config::Deck& deck, int section, std::int32_t marker) {
    const graph::Section& s = deck.graph.sections[section];
    const config::Section& given = deck.sections[section];
    model::Role role{.section = s.name,
                     .inputs = {},
                     .emits = !s.loss,
                     .output_width = 0,
                     .loss = s.loss,
                     .trained = s.train,
                     .needs_backward = s.backward,
                     .marker = marker,
                     .alpha = 0,
                     .temperature = given.distill.temperature,
                     .seed = deck.run.seed,
                     .compute = deck.run.precision == "bf16" ? DType::bf16 : DType::f32,
                     .recompute = deck.train.recompute == "layer"};
    for (const graph::Edge& e : deck.graph.edges) {
        if (e.from == section)
            role.output_width = s.kind == graph::Kind::vision
                                    ? static_cast<int>(deck.model_of(e.to).width)
                                    : static_cast<int>(deck.model_of(section).width);
        if (e.to != section) continue;
        role.inputs.push_back({e.tensor, spec_of(deck, e.from)});
        if (e.tensor == EdgeTensor::hidden) role.alpha = given.distill.alpha;
    }
    return role;
}

model::Geometry geometry_of(const config::Deck& deck, int section) {
    const config::Model& m = deck.model_of(section);
    if (m.kind != "vision") return {};
    return {static_cast<int>(m.patch), static_cast<int>(m.merge)};
}

model::Geometry expansion_of(const config::Deck& deck, int section) {
    for (const graph::Edge& e : deck.graph.edges)
        if (e.to == section && e.tensor == EdgeTensor::embeddings) return geometry_of(deck, e.from);
    return {};
}

SampleTable table_of(const config::Deck& deck, const data::SampleFile& samples) {
    std::vector<model::Geometry> geometries, expansions;
    for (int s = 0; s < static_cast<int>(deck.graph.sections.size()); ++s) {
        geometries.push_back(geometry_of(deck, s));
        expansions.push_back(expansion_of(deck, s));
    }
    return SampleTable(samples, deck.graph, std::move(geometries), std::move(expansions));
}

void check_samples(const config::Deck& deck, const data::SampleFile& samples, bool for_training) {
    const std::string path = samples.path().string();
    for (std::size_t s = 0; s < deck.sections.size(); ++s) {
        const config::Model& m = deck.model_of(static_cast<int>(s));
        if (m.kind == "language" && samples.vocabulary() > m.vocabulary)
            throw Error(ExitCode::bad_data, fmt::format("{}: holds token ids up to {}, beyond the vocabulary "
                                                        "of {} that model.{} has; set it to at least {}",
                                                        path, samples.vocabulary() - 1, m.vocabulary, m.name,
                                                        samples.vocabulary()));
        if (m.kind == "vision" && samples.channels() != m.channels)
            throw Error(ExitCode::bad_data,
                        fmt::format("{}: pictures of {} channels, model.{}.channels is {}", path,
                                    samples.channels(), m.name, m.channels));
    }
    if (for_training && samples.size() < deck.data.global_batch)
        throw Error(ExitCode::bad_deck,
                    fmt::format("data.global_batch: {} samples, but {} holds {}; it may be at most that",
                                deck.data.global_batch, path, samples.size()));
}

void check_lengths(const config::Deck& deck, const SampleTable& table) {
    for (std::size_t s = 0; s < deck.graph.sections.size(); ++s)
        for (std::int64_t i = 0; deck.graph.sections[s].loss && i < table.size(); ++i)
            if (const std::int64_t length = table.length(i, static_cast<int>(s));
                length > deck.data.sequence_length)
                throw Error(ExitCode::bad_data,
                            fmt::format("{}: sample {} has {} tokens with its pictures, data.sequence_length "
                                        "is {}; raise it or cut the sample",
                                        deck.data.train, i, length, deck.data.sequence_length),
                            Scope::all_ranks);
}

}  // namespace maestro::workload
