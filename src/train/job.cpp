#include "train/job.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "train/agree.hpp"
#include "train/costs.hpp"
#include "train/sections.hpp"

namespace maestro::train {

namespace {

/// Bytes that Linux says new programs may use.
double available_memory() {
    std::ifstream file("/proc/meminfo");
    std::string key, unit;
    for (double kib = 0; file >> key >> kib; std::getline(file, unit))
        if (key == "MemAvailable:") return kib * 1024;
    return 1e18;
}

bool holds(const graph::Section& section, int rank) {
    return rank >= section.first_rank && rank < section.first_rank + section.layout.ranks();
}

double mib(std::size_t bytes) {
    return static_cast<double>(bytes) / (1 << 20);
}

}  // namespace

Job::Job(Launch& launch) : launch_(launch) {
    const config::Deck& deck = launch.deck;
    const graph::SectionGraph& graph = deck.graph;
    const comm::Communicator& world = launch.world;
    const auto count = static_cast<int>(graph.sections.size());
    backend_ = backend::make_cpu(launch.topology.threads);
    agree(world, [&] {
        samples_ = std::make_unique<data::SampleFile>(deck.data.train);
        check_samples(deck, *samples_);
    });
    std::vector<model::Geometry> geometries, expansions;
    for (int s = 0; s < count; ++s) {
        geometries.push_back(geometry_of(deck, s));
        expansions.push_back(expansion_of(deck, s));
    }
    table_ = std::make_unique<SampleTable>(*samples_, graph, geometries, expansions);
    for (int s = 0; s < count; ++s)
        for (std::int64_t i = 0; graph.sections[static_cast<std::size_t>(s)].loss && i < table_->size(); ++i)
            if (table_->length(i, s) > deck.data.sequence_length)
                throw Error(ExitCode::bad_data,
                            fmt::format("{}: sample {} has {} tokens with its pictures, data.sequence_length "
                                        "is {}; raise it or cut the sample",
                                        deck.data.train, i, table_->length(i, s), deck.data.sequence_length),
                            Scope::all_ranks);

    // Memory of every section, the same on every rank; windows that are left open come from what is free.
    const double budget = -world.max(-0.5 * available_memory() / launch.topology.ranks_on_node);
    std::vector<model::Footprint> footprints;
    std::vector<int> windows;
    std::size_t scratch = 0;
    for (int s = 0; s < count; ++s) {
        const graph::Section& section = graph.sections[static_cast<std::size_t>(s)];
        footprints.push_back(model::measure(spec_of(deck, s), role_of(deck, s, samples_->marker()),
                                            table_->worst_micro_batch(section.micro_batch)));
        int window = section.window;
        if (window == 0) {
            const std::int64_t most = (deck.data.global_batch + section.micro_batch * section.layout.dp - 1) /
                                      (section.micro_batch * section.layout.dp);
            const auto fit = static_cast<std::int64_t>(
                budget / static_cast<double>(std::max<std::size_t>(footprints.back().saved, 1)));
            window = static_cast<int>(std::clamp<std::int64_t>(fit, 1, std::max<std::int64_t>(most, 1)));
        }
        windows.push_back(window);
        if (holds(section, world.rank())) scratch = std::max(scratch, footprints.back().scratch);
    }
    if (world.size() != graph.world) {  // a dry run in one process: memory is all that can be told
        for (int s = 0; s < count; ++s)
            description_.push_back(fmt::format(
                "section {}: window {}, {:.1f} MiB a micro-batch, {:.1f} MiB scratch",
                graph.sections[static_cast<std::size_t>(s)].name, windows[static_cast<std::size_t>(s)],
                mib(footprints[static_cast<std::size_t>(s)].saved),
                mib(footprints[static_cast<std::size_t>(s)].scratch)));
        return;
    }
    scratch_ = backend::Arena(*backend_, scratch);
    prefetcher_ = std::make_unique<data::Prefetcher>(*samples_);

    std::vector<channel::ChannelSpec> specs;
    for (const graph::Edge& e : graph.edges) {
        const graph::Section &up = graph.sections[static_cast<std::size_t>(e.from)],
                             &down = graph.sections[static_cast<std::size_t>(e.to)];
        channel::ChannelSpec spec{.name = up.name + "-" + down.name, .producers = {}, .consumers = {}};
        for (int r = 0; r < up.layout.dp; ++r) spec.producers.push_back(up.first_rank + r);
        for (int r = 0; r < down.layout.dp; ++r) spec.consumers.push_back(down.first_rank + r);
        spec.width = e.tensor == graph::EdgeTensor::embeddings ? deck.model_of(e.to).width
                                                               : deck.model_of(e.from).width;
        spec.dtype = deck.run.precision == "bf16" ? DType::bf16 : DType::f32;
        spec.window = windows[static_cast<std::size_t>(e.from)];
        for (const auto& shape : table_->worst_micro_batch(up.micro_batch)) {
            if (up.kind == graph::Kind::language)
                spec.max_rows += model::expanded_tokens(shape, expansions[static_cast<std::size_t>(e.from)]);
            else
                for (const auto& p : shape.pictures)
                    spec.max_rows += model::picture_tokens(p.height, p.width,
                                                           geometries[static_cast<std::size_t>(e.from)]);
        }
        spec.max_samples = deck.data.global_batch;
        spec.carries_gradient = e.gradient;
        spec.colocated = up.first_rank == down.first_rank;
        specs.push_back(std::move(spec));
    }
    channels_ = channel::open_channels(world, specs);
    for (std::size_t e = 0; e < graph.edges.size(); ++e)
        edges_.push_back({graph.edges[e].from, graph.edges[e].to, channels_[e].get()});

    for (int s = 0; s < count; ++s) {
        const graph::Section& section = graph.sections[static_cast<std::size_t>(s)];
        const bool mine = holds(section, world.rank());
        comm::Communicator replicas = world.split(mine ? 0 : -1, world.rank(), section.name);
        const model::Footprint& footprint = footprints[static_cast<std::size_t>(s)];
        const int window =
            section.loss ? 1 : windows[static_cast<std::size_t>(s)];  // a loss section runs backward at once
        std::int64_t parameters = 0;
        agree(world, [&] {
            if (!mine) return;
            auto module =
                model::make_module(*backend_, spec_of(deck, s), role_of(deck, s, samples_->marker()));
            load_initial_weights(deck, s, module->parameters());
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
                                  .window = window,
                                  .backward = section.backward,
                                  .dtype = deck.run.precision == "bf16" ? DType::bf16 : DType::f32,
                                  .saved_bytes = footprint.saved},
                std::move(module), std::move(replicas), std::move(inputs), std::move(outputs), scratch_));
        });
        parameters = static_cast<std::int64_t>(world.max(static_cast<double>(parameters)));
        description_.push_back(fmt::format(
            "section {} (colour {}): {} on rank{} {}, {} parameters, {}, micro_batch {}, window {}, {:.1f} "
            "MiB a micro-batch, {:.1f} MiB scratch",
            section.name, s, deck.sections[static_cast<std::size_t>(s)].model,
            section.layout.dp == 1 ? "" : "s",
            section.layout.dp == 1
                ? fmt::format("{}", section.first_rank)
                : fmt::format("{}-{}", section.first_rank, section.first_rank + section.layout.dp - 1),
            parameters, section.train ? "trained" : "frozen", section.micro_batch,
            windows[static_cast<std::size_t>(s)], mib(footprint.saved), mib(footprint.scratch)));
    }
    problem_ = problem_of(deck, windows);
    if (world.rank() == 0) costs_ = sample_costs(deck, samples_->marker(), *table_);
}

}  // namespace maestro::train
