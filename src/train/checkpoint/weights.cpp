#include "train/checkpoint/weights.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "comm/agree.hpp"
#include "io/checkpoint_reader.hpp"
#include "model/teacher_head.hpp"
#include "train/checkpoint/adapter_folder.hpp"
#include "train/checkpoint/block_walk.hpp"
#include "train/checkpoint/checkpoint_search.hpp"
#include "train/checkpoint/folder_weights.hpp"

namespace maestro::train {

namespace {

bool names_checkpoint(const config::Section& section) {
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

namespace {

/// `name`: of the parameter in the file.
void load_shard(const io::SectionReader& stored, const std::string& name, const parallel::Parameter& p,
                parallel::ParameterStore& store, Pulse& pulse) {
    const auto read = [&](Range block, float* values, Pulse&) {
        std::ranges::copy(stored.read(name, p.shape, io::Stored::weight, p.shard, block), values);
    };
    load_parameter(p, store, 1, kCheckpointBlock, read, pulse);
}

/// Without its adapters, the weights of a section with LoRA are not what was trained.
void refuse_adapters(const io::SectionReader& stored, const parallel::Parameter& p,
                     const parallel::ParameterStore& store, const std::string& checkpoint) {
    constexpr std::string_view kWeight = ".weight";
    if (!p.name.ends_with(kWeight)) return;
    const std::string name = p.name.substr(0, p.name.size() - kWeight.size()) + ".lora_A.weight";
    if (store.find(name) == nullptr && stored.has(name))
        throw Error(ExitCode::bad_data,
                    fmt::format("{}: has an adapter of {}, which this section has not; give it the "
                                "[section.lora] of that run, or export the section and start from the folder",
                                checkpoint, p.name));
}

std::string describe(const Lora& lora) {
    return fmt::format("rank {}, alpha {}, targets {}", lora.rank, lora.alpha, fmt::join(lora.targets, ", "));
}

}  // namespace

void check_adapters(const std::string& checkpoint, const config::Section& section, Pulse& pulse) {
    const Lora& here = section.lora.adapters;
    if (!here.enabled()) return;
    const Lora there = config::lora_of(io::read_train_state(checkpoint, pulse).settings,
                                       section_in(checkpoint, section.name));
    if (there.enabled() && there != here)
        throw Error(ExitCode::bad_data,
                    fmt::format("{}: its adapters have {}, those of section {} {}; change section.{}.lora",
                                checkpoint, describe(there), section.name, describe(here), section.name));
}

void load_weights(const std::string& checkpoint, const std::string& section, parallel::ParameterStore& store,
                  Pulse& pulse) {
    const io::SectionReader stored(checkpoint, section_in(checkpoint, section), pulse);
    // A checkpoint of the student holds its teacher's head. One that the student starts from may come from a
    // run without a teacher: then load_teacher_head() or initialize() follows. One of a run without LoRA has
    // no adapters, which initialize() then draws.
    for (const parallel::Parameter& p : store.parameters()) {
        refuse_adapters(stored, p, store, checkpoint);
        const bool optional = model::is_teacher_head(p.name) || parallel::is_adapter(p.name);
        if (!optional || stored.has(p.name)) load_shard(stored, p.name, p, store, pulse);
    }
}

void load_teacher_head(const std::string& checkpoint, const std::string& teacher, bool tied,
                       const parallel::Parameter& head, parallel::ParameterStore& student, Pulse& pulse) {
    const io::SectionReader stored(checkpoint, section_in(checkpoint, teacher), pulse);
    load_shard(stored, tied ? "embedding.weight" : "head.weight", head, student, pulse);
}

void check_folders(const comm::Communicator& world, const config::Deck& deck,
                   const workload::Scenario& scenario, Pulse& pulse) {
    comm::agree(world, [&] {
        if (world.rank() != 0) return;
        for (std::size_t i = 0; i < deck.sections.size(); ++i) {
            const config::Section& section = deck.sections[i];
            if (section.from_folder) check_folder(section.weights, scenario.models[i], pulse);
            if (!section.lora.weights.empty())
                check_adapter_folder(section.lora.weights, scenario.models[i], section.lora.adapters, pulse);
        }
    });
}

WeightFiles find_weights(const comm::Communicator& world, const config::Deck& deck, Pulse& pulse) {
    WeightFiles files;
    for (const config::Section& section : deck.sections)
        if (!section.from_folder && names_checkpoint(section) && !files.contains(section.weights))
            files[section.weights] = need_checkpoint(world, section.weights, pulse);
    comm::agree(world, [&] {
        if (world.rank() != 0) return;
        for (const config::Section& section : deck.sections)
            if (const auto file = files.find(section.weights); file != files.end())
                check_adapters(file->second, section, pulse);
    });
    return files;
}

void load_initial_weights(const config::Deck& deck, const workload::Scenario& scenario,
                          const WeightFiles& files, int section, parallel::ParameterStore& store,
                          Pulse& pulse) {
    const config::Section& target = deck.sections[section];
    if (target.from_folder)
        load_folder(target.weights, scenario.models[section], store, pulse);
    else if (names_checkpoint(target))
        load_weights(files.at(target.weights), target.name, store, pulse);
    if (!target.lora.weights.empty())
        load_adapter_folder(target.lora.weights, scenario.models[section], target.lora.adapters, store,
                            pulse);
    int teachers = 0;
    for (const graph::Edge& e : scenario.graph.edges) {
        if (e.to != section || e.tensor != EdgeTensor::hidden) continue;
        const config::Section& teacher = deck.sections[e.from];
        const parallel::Parameter* const head = store.find(model::teacher_head_name(teachers++));
        if (!head) continue;  // a stage of the student that computes no loss
        if (teacher.from_folder) {
            safetensors::SafetensorsFolder folder(teacher.weights, pulse);
            load_from_folder(folder, scenario.models[e.from], "head.weight", *head, store, pulse);
        } else if (names_checkpoint(teacher)) {
            load_teacher_head(files.at(teacher.weights), teacher.name, deck.model_of(e.from).tie_embeddings,
                              *head, store, pulse);
        }
    }
}

}  // namespace maestro::train
