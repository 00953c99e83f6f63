#include "train/weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "io/checkpoint.hpp"
#include "train/agree.hpp"

namespace maestro::train {

std::unique_ptr<data::SampleFile> open_samples(const comm::Communicator& world, const std::string& path) {
    std::unique_ptr<data::SampleFile> samples;
    agree(world, [&] {
        samples = std::make_unique<data::SampleFile>(path, data::Share{world.rank(), world.size()});
    });
    world.allreduce_sum(samples->weights());
    return samples;
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
        if (e.to == section && e.tensor == EdgeTensor::hidden) {
            const config::Section& teacher = deck.sections[static_cast<std::size_t>(e.from)];
            if (given(teacher))
                load_teacher_head(teacher.weights, teacher.name, deck.model_of(e.from).tie_embeddings, store);
        }
}

}  // namespace maestro::train
