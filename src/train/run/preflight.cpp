#include "train/run/preflight.hpp"

#include <fmt/format.h>

#include "comm/agree.hpp"
#include "comm/topology.hpp"
#include "train/run/memory.hpp"
#include "train/run/samples.hpp"
#include "workload/layout.hpp"
#include "workload/models.hpp"

namespace maestro::train {

Preflight::Preflight(const RunContext& context) : context_(context) {
    read_samples();
    if (context.deck.run.device == "emulated") open_cluster();
    plan_memory();
}

void Preflight::read_samples() {
    const config::Deck& deck = context_.deck;
    samples_ = open_samples(context_.world, deck.data.train, context_.pulse);
    comm::agree(context_.world, [&] { workload::check_samples(deck, *samples_); });
    if (workload::needs_markers(deck.graph)) find_markers(context_.world, *samples_, context_.pulse);
    table_ = std::make_unique<workload::SampleTable>(workload::table_of(deck, *samples_));
    workload::check_lengths(deck, *table_);
}

void Preflight::open_cluster() {
    const std::string& path = context_.deck.emulated.cluster;
    if (!comm::share_a_clock(context_.world))
        throw Error(
            ExitCode::bad_deck,
            "run.device: an emulated cluster's ranks run on one machine, or on hosts made on one (network "
            "namespaces, containers), because its links go by one clock; these have different boot ids",
            Scope::all_ranks);
    std::string text;
    comm::agree(context_.world, [&] {
        if (context_.world.rank() == 0) text = config::read_text(path);
    });
    context_.world.broadcast(text);
    emulation_ = std::make_unique<emulation::Emulation>(context_.deck, config::parse_cluster(text, path),
                                                        samples_->marker());
    description_.push_back(emulation_->describe());
}

void Preflight::plan_memory() {
    const config::Deck& deck = context_.deck;
    // A device that is not there has no threads of this host's.
    memory_ = workload::measure_memory(
        deck, *table_, samples_->marker(),
        emulation_ ? backend::Traits() : backend::traits_of(context_.device, context_.topology.threads));
    if (emulation_) {
        emulation_->fit(memory_);
        for (std::size_t s = 0; s < memory_.sections.size(); ++s) {
            const graph::Section& section = deck.graph.sections[s];
            description_.push_back(
                fmt::format("on the emulated device a rank of {} has window {} and needs {}", section.name,
                            memory_.sections[s].window,
                            workload::memory_of(memory_, deck.graph, section.first_rank).describe()));
        }
        memory_ = emulation_->scaled(memory_, *table_);
    }
    fit_memory(context_, memory_);
    if (context_.device.gpu) description_.push_back(workload::describe(memory_.libraries));
}

std::vector<std::string> Preflight::description(bool sections) const {
    std::vector<std::string> lines = description_;
    for (std::size_t s = 0; sections && s < memory_.sections.size(); ++s)
        lines.push_back(fmt::format("section {}: {}", context_.deck.graph.sections[s].name,
                                    workload::describe(memory_.sections[s])));
    return lines;
}

}  // namespace maestro::train
