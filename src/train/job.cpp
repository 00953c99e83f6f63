#include "train/job.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "comm/memory.hpp"
#include "train/agree.hpp"
#include "train/weights.hpp"
#include "workload/costs.hpp"
#include "workload/models.hpp"

namespace maestro::train {

Job::Job(Launch& launch, bool load_weights)
    : launch_(launch), load_weights_(load_weights), resident_at_start_(comm::resident_memory().now) {
    const config::Deck& deck = launch.deck;
    const comm::Communicator& world = launch.world;
    const auto count = static_cast<int>(launch.deck.graph.sections.size());
    backend_ = backend::make_cpu(launch.topology.threads);
    read_samples();
    if (deck.run.device == "emulated") open_cluster();
    const workload::MemoryPlan memory = take_stock();
    if (world.size() !=
        launch.deck.graph.world) {  // a dry run in one process: memory is all that can be told
        for (int s = 0; s < count; ++s)
            description_.push_back(
                fmt::format("section {}: {}", launch.deck.graph.sections[static_cast<std::size_t>(s)].name,
                            workload::describe(memory.sections[static_cast<std::size_t>(s)])));
        return;
    }
    planned_ = workload::memory_of(memory, launch.deck.graph, world.rank());
    std::size_t scratch = 0;
    for (std::size_t s = 0; s < memory.sections.size(); ++s)
        if (launch.deck.graph.sections[s].holds(world.rank()))
            scratch = std::max(scratch, memory.sections[s].footprint.scratch);
    scratch_ = backend::Arena(*backend_, scratch);
    prefetcher_ = std::make_unique<data::Prefetcher>(*samples_, workload::kBytesAhead);
    open_edges(memory.channels);
    if (load_weights_ && !emulation_) weights_ = find_weights(launch_);
    for (int s = 0; s < count; ++s) build_section(s, memory.sections[static_cast<std::size_t>(s)]);
    problem_ = workload::problem_of(launch.deck.graph, emulation_ ? &emulation_->cluster() : nullptr);
    for (std::size_t s = 0; s < memory.sections.size(); ++s)
        problem_.sections[s].window = memory.sections[s].window;
    agree(world, [&] {
        if (world.rank() != 0) return;
        costs_ = std::make_unique<workload::CostModel>(deck, samples_->marker(), *table_,
                                                       emulation_ ? &emulation_->cluster() : nullptr);
        if (emulation_) emulation_->check_times(*costs_, table_->size());
    });
    if (world.rank() != 0) return;
    description_.push_back(workload::describe_load(deck, *costs_, table_->size()));
}

/// Collective.
void Job::open_cluster() {
    const std::string& path = launch_.deck.emulated.cluster;
    if (!comm::share_a_clock(launch_.world))
        throw Error(
            ExitCode::bad_deck,
            "run.device: an emulated cluster's ranks run on one machine, or on hosts made on one (network "
            "namespaces, containers), because its links go by one clock; these have different boot ids",
            Scope::all_ranks);
    std::string text;
    agree(launch_.world, [&] {
        if (launch_.world.rank() == 0) text = config::read_text(path);
    });
    launch_.world.broadcast(text);
    emulation_ = std::make_unique<emulation::Emulation>(launch_.deck, config::parse_cluster(text, path),
                                                        samples_->marker());
    description_.push_back(emulation_->describe());
}

/// What the sections take of this machine's memory, windows chosen. Collective.
workload::MemoryPlan Job::take_stock() {
    workload::MemoryPlan plan = workload::measure_memory(launch_.deck, *table_, samples_->marker(),
                                                         emulation_ ? 1 : backend_->threads());
    if (emulation_) {
        emulation_->fit(plan);
        for (std::size_t s = 0; s < plan.sections.size(); ++s) {
            const graph::Section& section = launch_.deck.graph.sections[s];
            description_.push_back(
                fmt::format("on the emulated device a rank of {} has window {} and needs {}", section.name,
                            plan.sections[s].window,
                            workload::memory_of(plan, launch_.deck.graph, section.first_rank).describe()));
        }
        plan = emulation_->scaled(plan, *table_);
    }
    fit_memory(launch_, plan);
    return plan;
}

MemoryUse Job::memory_use() const {
    std::size_t taken = scratch_.capacity(), used = scratch_.peak();
    for (const auto& channel : channels_)
        if (channel) {
            const std::size_t bytes = channel::rank_bytes(channel->spec(), launch_.world.rank());
            taken += bytes;
            used += bytes;  // windows are filled at the start
        }
    for (const auto& replica : replicas_) {
        taken += replica->bytes();
        used += replica->used_bytes();
    }
    const auto most = static_cast<double>(comm::resident_memory().most);
    return {.planned = planned_.total(),
            .planned_buffers = planned_.buffers(),
            .buffers = static_cast<double>(taken),
            .used = static_cast<double>(used),
            .resident = most - static_cast<double>(resident_at_start_)};
}

void Job::read_samples() {
    const config::Deck& deck = launch_.deck;
    samples_ = open_samples(launch_.world, deck.data.train, launch_.pulse);
    agree(launch_.world, [&] { workload::check_samples(deck, *samples_); });
    table_ = std::make_unique<workload::SampleTable>(workload::table_of(deck, *samples_));
    workload::check_lengths(deck, *table_);
}

void Job::open_edges(const std::vector<channel::ChannelSpec>& specs) {
    const std::string& transport = launch_.deck.run.transport;
    auto [channels, description] =
        channel::open_channels(launch_.world, specs,
                               transport == "window"     ? channel::Wanted::window
                               : transport == "messages" ? channel::Wanted::messages
                                                         : channel::Wanted::automatic);
    channels_ = std::move(channels);
    description_.insert(description_.end(), description.begin(), description.end());
    for (std::size_t e = 0; e < specs.size(); ++e)
        edges_.push_back(
            {launch_.deck.graph.edges[e].from, launch_.deck.graph.edges[e].to, channels_[e].get()});
}

void Job::build_section(int s, const workload::SectionMemory& memory) {
    const config::Deck& deck = launch_.deck;
    const comm::Communicator& world = launch_.world;
    const graph::Section& section = launch_.deck.graph.sections[static_cast<std::size_t>(s)];
    const bool mine = section.holds(world.rank());
    comm::Communicator replicas = world.split(mine ? 0 : -1, world.rank(), section.name);
    std::int64_t parameters = 0;
    agree(world, [&] {
        if (!mine) return;
        const model::Role role = workload::role_of(deck, s, samples_->marker());
        auto module = emulation_ ? emulation_->make_module(*backend_, s)
                                 : model::make_module(*backend_, workload::spec_of(deck, s), role);
        if (load_weights_ && !emulation_) load_initial_weights(launch_, weights_, s, module->parameters());
        const workload::StepEnd end = emulation_ ? emulation_->end_of(s) : workload::StepEnd{};
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
                              .window = memory.slots(),
                              .backward = section.backward,
                              .dtype = role.compute,
                              .saved_bytes = memory.footprint.saved,
                              .reduce_s = end.reduce_s,
                              .update_s = end.update_s},
            std::move(module), std::move(replicas), std::move(inputs), std::move(outputs), scratch_));
    });
    parameters = static_cast<std::int64_t>(world.max(static_cast<double>(parameters)));
    const int last = section.first_rank + section.layout.ranks() - 1;
    description_.push_back(fmt::format(
        "section {} (colour {}): {} on {}, {} parameters, {}\n  micro_batch {}, {}", section.name, s,
        deck.sections[static_cast<std::size_t>(s)].model,
        last == section.first_rank ? fmt::format("rank {}", last)
                                   : fmt::format("ranks {}-{}", section.first_rank, last),
        parameters, section.train ? "trained" : "frozen", section.micro_batch, workload::describe(memory)));
}

}  // namespace maestro::train
