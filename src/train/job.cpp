#include "train/job.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "train/agree.hpp"
#include "train/weights.hpp"
#include "workload/costs.hpp"
#include "workload/models.hpp"

namespace maestro::train {

Job::Job(Launch& launch, bool load_weights) : launch_(launch), load_weights_(load_weights) {
    const config::Deck& deck = launch.deck;
    const comm::Communicator& world = launch.world;
    const auto count = static_cast<int>(launch.graph.sections.size());
    backend_ = backend::make_cpu(launch.topology.threads);
    read_samples();
    const std::vector<SectionMemory> memory = plan_memory(launch, *table_, samples_->marker());
    if (world.size() != launch.graph.world) {  // a dry run in one process: memory is all that can be told
        for (int s = 0; s < count; ++s)
            description_.push_back(fmt::format("section {}: {}",
                                               launch.graph.sections[static_cast<std::size_t>(s)].name,
                                               describe(memory[static_cast<std::size_t>(s)])));
        return;
    }
    std::size_t scratch = 0;
    for (std::size_t s = 0; s < memory.size(); ++s)
        if (holds(launch.graph.sections[s], world.rank()))
            scratch = std::max(scratch, memory[s].footprint.scratch);
    scratch_ = backend::Arena(*backend_, scratch);
    prefetcher_ = std::make_unique<data::Prefetcher>(*samples_, kBytesAhead);
    open_edges(memory);
    for (int s = 0; s < count; ++s) build_section(s, memory[static_cast<std::size_t>(s)]);
    problem_ = workload::problem_of(launch.graph);
    for (std::size_t s = 0; s < memory.size(); ++s) problem_.sections[s].window = memory[s].window;
    if (world.rank() != 0) return;
    costs_ = workload::sample_costs(deck, samples_->marker(), *table_);
    description_.push_back(workload::describe_load(deck, costs_));
}

void Job::read_samples() {
    const config::Deck& deck = launch_.deck;
    samples_ = open_samples(launch_.world, deck.data.train);
    agree(launch_.world, [&] { workload::check_samples(deck, *samples_); });
    const auto count = static_cast<int>(launch_.graph.sections.size());
    table_ = std::make_unique<workload::SampleTable>(workload::table_of(deck, *samples_));
    for (int s = 0; s < count; ++s)
        for (std::int64_t i = 0;
             launch_.graph.sections[static_cast<std::size_t>(s)].loss && i < table_->size(); ++i)
            if (table_->length(i, s) > deck.data.sequence_length)
                throw Error(ExitCode::bad_data,
                            fmt::format("{}: sample {} has {} tokens with its pictures, data.sequence_length "
                                        "is {}; raise it or cut the sample",
                                        deck.data.train, i, table_->length(i, s), deck.data.sequence_length),
                            Scope::all_ranks);
}

void Job::open_edges(const std::vector<SectionMemory>& memory) {
    const config::Deck& deck = launch_.deck;
    std::vector<channel::ChannelSpec> specs;
    for (const graph::Edge& e : launch_.graph.edges) {
        const graph::Section &up = launch_.graph.sections[static_cast<std::size_t>(e.from)],
                             &down = launch_.graph.sections[static_cast<std::size_t>(e.to)];
        channel::ChannelSpec spec{.name = up.name + "-" + down.name, .producers = {}, .consumers = {}};
        for (int r = 0; r < up.layout.dp; ++r) spec.producers.push_back(up.first_rank + r);
        for (int r = 0; r < down.layout.dp; ++r) spec.consumers.push_back(down.first_rank + r);
        const model::Role role = workload::role_of(deck, e.from, samples_->marker());
        spec.width = role.output_width;
        spec.dtype = role.compute;
        spec.window = memory[static_cast<std::size_t>(e.from)].window;
        spec.max_rows = memory[static_cast<std::size_t>(e.from)].max_rows;
        spec.max_samples = deck.data.global_batch;
        spec.carries_gradient = e.gradient;
        spec.colocated = up.first_rank == down.first_rank;
        specs.push_back(std::move(spec));
    }
    channels_ = channel::open_channels(launch_.world, specs);
    for (std::size_t e = 0; e < specs.size(); ++e)
        edges_.push_back({launch_.graph.edges[e].from, launch_.graph.edges[e].to, channels_[e].get()});
}

void Job::build_section(int s, const SectionMemory& memory) {
    const config::Deck& deck = launch_.deck;
    const comm::Communicator& world = launch_.world;
    const graph::Section& section = launch_.graph.sections[static_cast<std::size_t>(s)];
    const bool mine = holds(section, world.rank());
    comm::Communicator replicas = world.split(mine ? 0 : -1, world.rank(), section.name);
    std::int64_t parameters = 0;
    agree(world, [&] {
        if (!mine) return;
        const model::Role role = workload::role_of(deck, s, samples_->marker());
        auto module = model::make_module(*backend_, workload::spec_of(deck, s), role);
        if (load_weights_) load_initial_weights(deck, s, module->parameters());
        parameters = module->parameters().count();
        std::vector<channel::Channel*> inputs, outputs;
        for (const EdgeEnd& e : edges_) {
            if (e.to == s) inputs.push_back(e.channel);
            if (e.from == s) outputs.push_back(e.channel);
        }
        replicas_.push_back(std::make_unique<Replica>(
            *backend_,
            Replica::Settings{.section = s,
                              .name = section.name,
                              .index = world.rank() - section.first_rank,
                              .window = memory.slots,
                              .backward = section.backward,
                              .dtype = role.compute,
                              .saved_bytes = memory.footprint.saved},
            std::move(module), std::move(replicas), std::move(inputs), std::move(outputs), scratch_));
    });
    parameters = static_cast<std::int64_t>(world.max(static_cast<double>(parameters)));
    const int last = section.first_rank + section.layout.ranks() - 1;
    description_.push_back(
        fmt::format("section {} (colour {}): {} on {}, {} parameters, {}\n  micro_batch {}, {}", section.name,
                    s, deck.sections[static_cast<std::size_t>(s)].model,
                    last == section.first_rank ? fmt::format("rank {}", last)
                                               : fmt::format("ranks {}-{}", section.first_rank, last),
                    parameters, section.train ? "trained" : "frozen", section.micro_batch, describe(memory)));
}

}  // namespace maestro::train
