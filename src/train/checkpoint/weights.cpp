#include "train/checkpoint/weights.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "io/checkpoint_reader.hpp"
#include "train/checkpoint/checkpoint_search.hpp"

namespace maestro::train {

namespace {

bool given(const config::Section& section) {
    return !section.weights.empty() && section.weights != "random";
}

}  // namespace

std::string section_in(const std::string& checkpoint, const std::string& section) {
    const auto names = io::sections_of(checkpoint);
    if (std::find(names.begin(), names.end(), section) != names.end()) return section;
    if (names.size() == 1) return names.front();
    throw Error(ExitCode::bad_data, fmt::format("{}: holds no section '{}', only {}", checkpoint, section,
                                                fmt::join(names, ", ")));
}

void load_weights(const std::string& checkpoint, const std::string& section, parallel::ParameterStore& store,
                  Pulse& pulse) {
    const io::SectionReader stored(checkpoint, section_in(checkpoint, section), pulse);
    for (const parallel::Parameter& p : store.parameters()) {
        if (p.name.starts_with("teacher_head") && !stored.has(p.name)) continue;
        store.backend().upload(stored.read(p.name, p.shape, io::Stored::weight, p.shard).data(), p.master);
    }
    store.refresh_compute();
}

void load_teacher_head(const std::string& checkpoint, const std::string& teacher, bool tied,
                       parallel::ParameterStore& student, Pulse& pulse) {
    const parallel::Parameter* head = student.find("teacher_head.weight");
    MAESTRO_CHECK(head, "a student without its teacher's head");
    const io::SectionReader stored(checkpoint, section_in(checkpoint, teacher), pulse);
    student.backend().upload(
        stored.read(tied ? "embedding.weight" : "head.weight", head->shape, io::Stored::weight, head->shard)
            .data(),
        head->master);
    student.refresh_compute();
}

WeightFiles find_weights(const comm::Communicator& world, const config::Deck& deck, Pulse& pulse) {
    WeightFiles files;
    for (const config::Section& section : deck.sections)
        if (given(section) && !files.contains(section.weights))
            files[section.weights] = need_checkpoint(world, section.weights, pulse);
    return files;
}

void load_initial_weights(const config::Deck& deck, const WeightFiles& files, int section,
                          parallel::ParameterStore& store, Pulse& pulse) {
    const config::Section& own = deck.sections[section];
    if (given(own)) load_weights(files.at(own.weights), own.name, store, pulse);
    for (const graph::Edge& e : deck.graph.edges)
        if (e.to == section && e.tensor == EdgeTensor::hidden) {
            const config::Section& teacher = deck.sections[e.from];
            if (given(teacher))
                load_teacher_head(files.at(teacher.weights), teacher.name,
                                  deck.model_of(e.from).tie_embeddings, store, pulse);
        }
}

}  // namespace maestro::train
