#include "train/run/job.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>

#include "comm/agree.hpp"
#include "comm/memory.hpp"
#include "graph/grid.hpp"
#include "train/checkpoint/weights.hpp"
#include "workload/costs.hpp"
#include "workload/layout.hpp"
#include "workload/models.hpp"

namespace maestro::train {

Job::Job(const RunContext& context, const Preflight& preflight)
    : context_(context),
      preflight_(preflight),
      resident_at_start_(comm::resident_memory().now),
      planned_(workload::memory_of(preflight.memory(), context.scenario.graph, context.world.rank())),
      description_(preflight.description(false)) {
    const graph::SectionGraph& graph = context.scenario.graph;
    allocate_on_all_ranks(context, preflight.memory(),
                          [&] { devices_ = std::make_unique<SectionDevices>(context, preflight.memory()); });
    prefetcher_ = std::make_unique<data::Prefetcher>(
        preflight.shared_samples(),
        data::Prefetcher::Settings{.bytes_ahead = workload::kBytesAhead,
                                   .timeout_s = context_.deck.run.timeout_s},
        context_.pulse);
    const int lane = graph::lane_on(graph, context.world.rank());
    lane_ = context.world.split(
        lane, context.world.rank(),
        fmt::format("the lane of {}", graph::describe_place(graph, graph::ranks_of(graph, lane).front())));
    open_edges();  // before the sections, which point to the channels at their ends
    for (int s = 0; s < static_cast<int>(graph.sections.size()); ++s) build_section(s);
    prepare_planning();
}

/// Rank 0 alone needs the costs.
void Job::prepare_planning() {
    problem_ = workload::problem_of(preflight_.scenario());
    for (std::size_t s = 0; s < preflight_.memory().sections.size(); ++s)
        problem_.stages[s].window = preflight_.memory().sections[s].window;
    comm::agree(context_.world, [&] {
        if (context_.world.rank() != 0) return;
        context_.pulse.doing("the costs of all samples");
        workload::Probes probes;
        costs_ = std::make_unique<workload::CostModel>(preflight_.scenario(), table(), probes);
        if (preflight_.emulation()) preflight_.emulation()->check_times(*costs_, table());
        description_.push_back(workload::describe_load(context_.scenario.graph, *costs_, table()));
    });
}

MemoryUse Job::memory_use() const {
    std::size_t allocated = devices_->scratch_bytes(), used = devices_->used_scratch_bytes();
    for (const auto& channel : channels_)
        if (channel) {
            const std::size_t bytes = channel::rank_bytes(channel->spec(), context_.world.rank());
            allocated += bytes;
            used += bytes;  // windows are filled at the start
        }
    for (const auto& section : sections_) {
        allocated += section->bytes();
        used += section->used_bytes();
    }
    const auto most = static_cast<double>(comm::resident_memory().most);
    return {.planned = planned_.total(),
            .planned_buffers = planned_.buffers(),
            .buffers = static_cast<double>(allocated),
            .used = static_cast<double>(used),
            .resident = most - static_cast<double>(resident_at_start_)};
}

void Job::open_edges() {
    const std::vector<channel::ChannelSpec>& specs = preflight_.memory().channels;
    const graph::SectionGraph& graph = context_.scenario.graph;
    std::vector<transport::Backends> ends;
    for (const graph::Edge& e : graph.edges) ends.push_back({devices_->find(e.from), devices_->find(e.to)});
    auto [channels, description] =
        channel::open_channels(context_.world, specs, transport_request(context_.deck), ends);
    channels_ = std::move(channels);
    description_.insert(description_.end(), description.begin(), description.end());
    for (std::size_t e = 0; e < specs.size(); ++e) {
        const int from = graph.edges[e].from, to = graph.edges[e].to;
        edges_.push_back({from, to, channels_[e].get(), workload::degrees_of(graph.sections[from]),
                          workload::degrees_of(graph.sections[to])});
    }
}

void Job::load_initial() {
    if (preflight_.emulation()) return;  // an emulated module computes nothing, its weights stay zeros
    const WeightFiles files = find_weights(context_.world, context_.deck, context_.pulse);
    comm::agree(context_.world, [&] {
        for (const auto& section : sections_)
            load_initial_weights(context_.deck, context_.scenario.graph, files, section->colour(),
                                 section->module().parameters(), context_.pulse);
    });
    complete_weights();
}

void Job::load(const std::string& checkpoint) {
    load_checkpoint(state(), checkpoint);
    complete_weights();
}

void Job::complete_weights() {
    // Each rank reads or draws the weights of its shards alone. A file is read once, not by every replica,
    // and the time to draw is shared.
    comm::agree(context_.world, [&] {
        for (const auto& section : sections_) section->module().parameters().initialize(context_.pulse, true);
    });
    for (std::size_t i = 0; i < sections_.size(); ++i) {
        model::Module& module = sections_[i]->module();
        const parallel::MeshShape& shape = module.mesh().shape();
        context_.watchdog.doing("the weights of section " + sections_[i]->name());
        // A frozen section reduces no gradients, so its mesh has no group over the data axes. It needs one
        // only here, and gives its memory back.
        std::unique_ptr<collective::ProcessGroup> data_group;
        if (!shape.trainable)
            data_group = parallel::make_data_group(
                section_ranks_[i], devices_->backend(sections_[i]->colour()), shape, sections_[i]->name());
        collective::ProcessGroup& ranks = data_group ? *data_group : module.mesh().group(parallel::kDataAxes);
        for (parallel::ParameterGroup& group : module.parameters().groups()) group.gather_weights(ranks);
    }
}

void Job::build_section(int s) {
    const comm::Communicator& world = context_.world;
    const graph::Section& section = context_.scenario.graph.sections[s];
    const std::optional<graph::Place> place = graph::place_of(section, world.rank());
    comm::Communicator ranks =
        world.split(place ? 0 : -1, world.rank(), fmt::format("the ranks of section {}", section.name));
    std::optional<parallel::Mesh> mesh;
    if (place) mesh = mesh_of(s, ranks);  // its groups are made by the ranks of the section alone
    SectionReport report;
    allocate_on_all_ranks(context_, preflight_.memory(), [&] {
        if (place) report = add_section(s, place->replica, std::move(*mesh));
    });
    if (place) section_ranks_.push_back(std::move(ranks));
    describe_section(s, std::move(report));
}

parallel::Mesh Job::mesh_of(int s, const comm::Communicator& ranks) {
    const workload::Scenario& scenario = preflight_.scenario();
    std::optional<parallel::Mesh> mesh;
    in_planned_memory(context_, preflight_.memory(), [&] {
        mesh = parallel::make_mesh(ranks, devices_->backend(s), workload::mesh_shape_of(scenario, s),
                                   scenario.graph.sections[s].name);
    });
    return std::move(*mesh);
}

Job::SectionReport Job::add_section(int s, int replica, parallel::Mesh mesh) {
    const workload::Scenario& scenario = preflight_.scenario();
    const graph::Section& section = scenario.graph.sections[s];
    const workload::SectionMemory& memory = preflight_.memory().sections[s];
    backend::Backend& backend = devices_->backend(s);
    SectionReport report;
    if (backend.stream()) report.transports = mesh.describe_transports();
    auto module = preflight_.emulation()
                      ? preflight_.emulation()->make_module(backend, s, std::move(mesh))
                      : model::make_module(backend, scenario.models[s], workload::role_of(scenario, s),
                                           std::move(mesh), model::InitialWeights::zeros);
    report.parameters = module->parameters().count();
    report.attention_plans = prepare_attention(*module, s);
    std::vector<channel::Channel*> inputs, outputs;
    for (const EdgeEnd& e : edges_) {
        if (e.to == s) inputs.push_back(e.channel);
        if (e.from == s) outputs.push_back(e.channel);
    }
    const LocalSection::Settings settings{.section = s,
                                          .stage = section.first_stage,
                                          .name = section.name,
                                          .replica = replica,
                                          .window = memory.slots(),
                                          .backward = section.backward,
                                          .dtype = module->parameters().compute(),
                                          .saved_bytes = memory.footprint.saved};
    sections_.push_back(std::make_unique<LocalSection>(backend, settings, std::move(module),
                                                       context_.world.waiter(), std::move(inputs),
                                                       std::move(outputs), devices_->scratch(s)));
    return report;
}

std::string Job::prepare_attention(model::Module& module, int s) {
    backend::FusedAttention* const attention = devices_->backend(s).fused_attention();
    if (!attention) return {};
    const std::size_t before = attention->plans();
    const auto began = std::chrono::steady_clock::now();
    const std::set<std::int64_t> rows = preflight_.table().sequence_rows(s);
    module.prepare(std::vector(rows.begin(), rows.end()));
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - began;
    if (attention->plans() == before) return {};
    return fmt::format("{} plans of attention built in {:.1f} s", attention->plans() - before,
                       elapsed.count());
}

void Job::describe_section(int s, SectionReport report) {
    const comm::Communicator& world = context_.world;
    const graph::Section& section = context_.scenario.graph.sections[s];
    // tp ranks hold different numbers where a degree does not divide a size.
    const auto parameters = static_cast<std::int64_t>(world.max(static_cast<double>(report.parameters)));
    description_.push_back(
        fmt::format("section {} (colour {}): {} on {}, {} parameters, {}\n  micro_batch {}, {}", section.name,
                    s, context_.scenario.models[s].name, graph::describe_ranks(section), parameters,
                    section.train ? "trained" : "frozen", section.micro_batch,
                    workload::describe(preflight_.memory().sections[s])));
    if constexpr (!backend::kCuda) return;
    for (std::string* line : {&report.transports, &report.attention_plans}) {
        world.broadcast(*line, section.first_rank);
        if (!line->empty()) description_.push_back(fmt::format("  section {}: {}", section.name, *line));
    }
}

std::vector<LocalSection*> local_sections(Job& job) {
    std::vector<LocalSection*> sections;
    for (auto& section : job.sections()) sections.push_back(section.get());
    return sections;
}

}  // namespace maestro::train
