#include "train/sections.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "io/checkpoint.hpp"
#include "train/agree.hpp"

namespace maestro::train {

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
    const graph::Section& s = deck.graph.sections[static_cast<std::size_t>(section)];
    const config::Section& given = deck.sections[static_cast<std::size_t>(section)];
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
                     .shards = s.layout.dp,
                     .seed = deck.run.seed,
                     .compute = deck.run.precision == "bf16" ? DType::bf16 : DType::f32,
                     .recompute = deck.train.recompute == "layer",
                     .tp = {}};
    for (const graph::Edge& e : deck.graph.edges) {
        if (e.from == section)
            role.output_width = s.kind == graph::Kind::vision
                                    ? static_cast<int>(deck.model_of(e.to).width)
                                    : static_cast<int>(deck.model_of(section).width);
        if (e.to != section) continue;
        const bool hidden = e.tensor == graph::EdgeTensor::hidden;
        role.inputs.push_back(
            {hidden ? model::EdgeTensor::hidden : model::EdgeTensor::embeddings, spec_of(deck, e.from)});
        if (hidden) role.alpha = given.distill.alpha;
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
        if (e.to == section && e.tensor == graph::EdgeTensor::embeddings) return geometry_of(deck, e.from);
    return {};
}

std::unique_ptr<data::SampleFile> open_samples(const comm::Communicator& world, const std::string& path) {
    std::unique_ptr<data::SampleFile> samples;
    agree(world, [&] {
        samples = std::make_unique<data::SampleFile>(path, data::Share{world.rank(), world.size()});
    });
    world.allreduce_sum(samples->weights());
    return samples;
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

namespace {

std::filesystem::path checkpoint_of(const std::string& path) {
    if (!std::filesystem::exists(path))
        throw Error(
            ExitCode::input_missing,
            fmt::format("{}: there are no weights; train that deck first, or name a run or a checkpoint",
                        path));
    const auto found = io::find_checkpoint(path);
    if (!found) throw Error(ExitCode::bad_data, fmt::format("{}: no whole checkpoint there", path));
    return *found;
}

std::string section_in(const std::filesystem::path& checkpoint, const std::string& section) {
    const auto names = io::sections_of(checkpoint);
    if (std::find(names.begin(), names.end(), section) != names.end()) return section;
    if (names.size() == 1) return names.front();
    throw Error(ExitCode::bad_data, fmt::format("{}: holds no section '{}', only {}", checkpoint.string(),
                                                section, fmt::join(names, ", ")));
}

void fill(const model::Parameter& parameter, const std::vector<float>& values) {
    std::memcpy(parameter.master.as<float>(), values.data(), values.size() * sizeof(float));
}

}  // namespace

void load_weights(const std::string& path, const std::string& section, model::ParameterStore& store) {
    const auto checkpoint = checkpoint_of(path);
    const std::string stored = section_in(checkpoint, section);
    for (const model::Parameter& p : store.parameters()) {
        if (p.name.starts_with("teacher_head") && !io::has_parameter(checkpoint, stored, p.name)) continue;
        fill(p, io::read_parameter(checkpoint, stored, p.name, p.shape, io::Stored::weight));
    }
    store.refresh_compute();
}

void load_teacher_head(const std::string& path, const std::string& teacher, bool tied,
                       model::ParameterStore& student) {
    const model::Parameter* head = student.find("teacher_head.weight");
    MAESTRO_CHECK(head, "a student without its teacher's head");
    const auto checkpoint = checkpoint_of(path);
    fill(*head,
         io::read_parameter(checkpoint, section_in(checkpoint, teacher),
                            tied ? "embedding.weight" : "head.weight", head->shape, io::Stored::weight));
    student.refresh_compute();
}

void load_initial_weights(const config::Deck& deck, int section, model::ParameterStore& store) {
    const auto given = [](const config::Section& s) { return !s.weights.empty() && s.weights != "random"; };
    const config::Section& own = deck.sections[static_cast<std::size_t>(section)];
    if (given(own)) load_weights(own.weights, own.name, store);
    for (const graph::Edge& e : deck.graph.edges)
        if (e.to == section && e.tensor == graph::EdgeTensor::hidden) {
            const config::Section& teacher = deck.sections[static_cast<std::size_t>(e.from)];
            if (given(teacher))
                load_teacher_head(teacher.weights, teacher.name, deck.model_of(e.from).tie_embeddings, store);
        }
}

}  // namespace maestro::train
