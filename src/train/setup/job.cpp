#include "train/setup/job.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>

#include "backend/device.hpp"
#include "base/log.hpp"
#include "comm/advance.hpp"
#include "comm/agree.hpp"
#include "comm/memory.hpp"
#include "graph/grid.hpp"
#include "train/checkpoint/weights.hpp"
#include "workload/costs.hpp"
#include "workload/layout.hpp"
#include "workload/models.hpp"
#include "workload/rank_device.hpp"

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
        data::Prefetcher::Settings{
            .bytes_ahead = workload::kBytesAhead,
            .timeout_s = context_.deck.run.timeout_s,
            .advance = [&waiter = context_.world.waiter()] { return comm::advance(waiter); }},
        context_.pulse);
    const int lane = graph::lane_on(graph, context.world.rank());
    lane_ = context.world.split(
        lane, context.world.rank(),
        fmt::format("the lane of {}", graph::describe_place(graph, graph::ranks_of(graph, lane).front())));
    open_edges();  // before the sections, which point to the channels at their ends
    for (int s = 0; s < static_cast<int>(graph.sections.size()); ++s) build_section(s);
    choose_sync_times();
    prepare_planning();
}

void Job::choose_sync_times() {
    const int streams = static_cast<int>(context_.world.max(backend::count_streams())),
              queues = -static_cast<int>(context_.world.max(-backend::hardware_queues()));
    if (streams == 0) return;
    std::string text = fmt::format("CUDA streams: at most {} on a rank, {} hardware queue{}", streams, queues,
                                   queues == 1 ? "" : "s");
    // CUDA loads most kernels when they are launched for the first time, and may wait for all work of the
    // device to do so: also for a sum that waits for a rank that waits for this one.
    auto between_steps = ParameterSync::BetweenSteps::first;
    if (streams > queues) {
        // A sum would wait in a queue for ranks whose sum waits behind a task's exchange with this rank.
        between_steps = ParameterSync::BetweenSteps::always;
        text +=
            "; work waits behind that of other streams, so that gradients are summed and weights gathered "
            "between the tasks of two steps: put fewer sections on a rank, or do not set "
            "CUDA_DEVICE_MAX_CONNECTIONS";
    }
    for (auto& stage : stages_)
        if (stage) stage->set_between_steps(between_steps);
    description_.push_back(text);
}

/// Rank 0 alone needs the costs.
void Job::prepare_planning() {
    problem_ = workload::problem_of(preflight_.scenario());
    for (std::size_t s = 0; s < preflight_.memory().stages.size(); ++s)
        problem_.stages[s].window = preflight_.memory().stages[s].window;
    if (preflight_.emulation()) workload::add_syncs(preflight_.emulation()->step_ends(), problem_);
    comm::agree(context_.world, [&] {
        if (context_.world.rank() != 0) return;
        context_.pulse.doing("the costs of all samples");
        workload::Probes probes;
        costs_ = std::make_unique<workload::CostModel>(preflight_.scenario(), table(), probes);
        costs_->set_lacking(problem_);
        if (preflight_.emulation()) preflight_.emulation()->check_times(*costs_, table());
        if (context_.scenario.graph.sections.size() > 1)
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
    for (const auto& stage : stages_) {
        allocated += stage->bytes();
        used += stage->used_bytes();
    }
    const auto most = static_cast<double>(comm::resident_memory().most);
    return {.planned = planned_.total(),
            .planned_buffers = planned_.buffers() + planned_.snapshot,
            .buffers = static_cast<double>(allocated),
            .used = static_cast<double>(used),
            .resident = most - static_cast<double>(resident_at_start_)};
}

void Job::open_edges() {
    const std::vector<channel::ChannelSpec>& specs = preflight_.memory().channels;
    const graph::SectionGraph& graph = context_.scenario.graph;
    std::vector<transport::Backends> ends;
    const auto device_of = [&](int stage) {
        return graph::holds(graph, stage, context_.world.rank()) ? devices_->find(graph.stages[stage].section)
                                                                 : nullptr;
    };
    for (const graph::StageEdge& e : graph.stage_edges) ends.push_back({device_of(e.from), device_of(e.to)});
    auto [channels, description] =
        channel::open_channels(context_.world, specs, workload::transport_request(context_.deck.run), ends);
    channels_ = std::move(channels);
    description_.insert(description_.end(), description.begin(), description.end());
    for (std::size_t e = 0; e < specs.size(); ++e) {
        const graph::StageEdge& edge = graph.stage_edges[e];
        const auto side = [&](int stage) {
            return EdgeSide{graph.stages[stage].section, workload::degrees_of(graph.section_of(stage))};
        };
        edges_.push_back({edge.from, edge.to, side(edge.from), side(edge.to), channels_[e].get()});
    }
}

void Job::load_initial() {
    if (preflight_.emulation()) return;  // an emulated module computes nothing, its weights stay zeros
    const WeightFiles files = find_weights(context_.world, context_.deck, context_.pulse);
    comm::agree(context_.world, [&] {
        for (const auto& stage : stages_)
            load_initial_weights(context_.deck, context_.scenario, files, stage->section(),
                                 stage->module().parameters(), context_.pulse);
    });
    complete_weights();
}

void Job::load(const std::string& checkpoint) {
    load_checkpoint(state(), checkpoint);
    complete_weights();
}

void Job::find_answer_ends() {
    const auto& sections = context_.deck.sections;
    const bool exported =
        std::any_of(sections.begin(), sections.end(), [](const auto& s) { return s.from_folder; });
    if (!exported || preflight_.emulation()) return;
    comm::agree(context_.world, [&] {
        if (context_.world.rank() != 0) return;
        answer_ends_ = trained_ends(preflight_.sample_file(), context_.pulse);
        for (std::size_t s = 0; s < sections.size(); ++s) {
            if (!sections[s].from_folder || !context_.scenario.graph.sections[s].loss) continue;
            const auto missing = missing_ends(sections[s].weights, answer_ends_, context_.pulse);
            if (!missing.empty())
                log::info(
                    "answers in {} end with token {}, which {} does not name as an end; maestro export adds "
                    "it to {}",
                    samples().name(), fmt::join(missing, ", "), sections[s].weights, kGenerationConfig);
        }
    });
}

void Job::complete_weights() {
    // Each rank reads or draws the weights of its shards alone. A file is read once, not by every replica,
    // and the time to draw is shared.
    comm::agree(context_.world, [&] {
        for (const auto& stage : stages_) stage->module().parameters().initialize(context_.pulse, true);
    });
    for (std::size_t i = 0; i < stages_.size(); ++i) {
        model::Module& module = stages_[i]->module();
        const parallel::MeshShape& shape = module.mesh().shape();
        context_.watchdog.doing("the weights of section " + stages_[i]->label());
        // A frozen section reduces no gradients, so its mesh has no group over the data axes. It needs one
        // only here, and gives its memory back.
        for (const parallel::Axes axes : {parallel::kDataAxes, parallel::kExpertDataAxes}) {
            if (axes == parallel::kExpertDataAxes && !shape.has_experts) continue;
            std::unique_ptr<collective::ProcessGroup> made;
            if (!shape.trainable)
                made = parallel::make_data_group(stage_ranks_[stages_[i]->section()],
                                                 devices_->backend(stages_[i]->section()), shape,
                                                 stages_[i]->name(), sums(), axes);
            collective::ProcessGroup& ranks = made ? *made : module.mesh().group(axes);
            for (parallel::ParameterGroup& group : module.parameters().groups())
                if (group.data_axes() == axes) group.gather_weights(ranks);
        }
    }
}

void Job::build_section(int s) {
    const comm::Communicator& world = context_.world;
    const graph::SectionGraph& graph = context_.scenario.graph;
    const graph::Section& section = graph.sections[s];
    const std::optional<graph::Place> place = graph::place_of(section, world.rank());
    stage_ranks_.push_back(world.split(
        place ? place->pp : -1, world.rank(),
        section.layout.pp == 1
            ? fmt::format("the ranks of section {}", section.name)
            : fmt::format("the ranks of section {} with pp {}", section.name, place ? place->pp : 0)));
    auto tied = tied_group(s, place);
    std::vector<StageReport> reports;
    for (int stage = section.first_stage; stage <= graph.last_stage(s); stage += section.layout.pp) {
        // The groups of a stage are made by its ranks alone. Of the stages in this round one is here.
        std::optional<parallel::Mesh> mesh;
        const int here = place ? stage + place->pp : -1;
        if (place)
            mesh = mesh_of(here, workload::is_tied(context_.scenario, here) ? std::move(tied) : nullptr);
        allocate_on_all_ranks(context_, preflight_.memory(), [&] {
            if (place) reports.push_back(add_stage(here, place->replica, std::move(*mesh)));
        });
    }
    describe_section(s, std::move(reports));
}

std::unique_ptr<collective::ProcessGroup> Job::tied_group(int s, const std::optional<graph::Place>& place) {
    const graph::Section& section = context_.scenario.graph.sections[s];
    if (!section.train || !workload::is_tied(context_.scenario, section.first_stage)) return nullptr;
    int colour = -1;
    if (place && (place->pp == 0 || place->pp + 1 == section.layout.pp))
        colour = (place->replica * section.layout.cp + place->cp) * section.layout.tp + place->tp;
    comm::Communicator ranks = context_.world.split(colour, context_.world.rank(),
                                                    fmt::format("section {}, tied embeddings", section.name));
    std::unique_ptr<collective::ProcessGroup> group;
    in_planned_memory(context_, preflight_.memory(), [&] {
        if (ranks) group = collective::make_process_group(std::move(ranks), devices_->backend(s), sums());
    });
    return group;
}

collective::Sums Job::sums() const {
    return context_.deck.run.sums == "ordered" ? collective::Sums::ordered : collective::Sums::automatic;
}

parallel::Mesh Job::mesh_of(int stage, std::unique_ptr<collective::ProcessGroup> tied) {
    const workload::Scenario& scenario = preflight_.scenario();
    const int section = scenario.graph.stages[stage].section;
    std::optional<parallel::Mesh> mesh;
    in_planned_memory(context_, preflight_.memory(), [&] {
        mesh = parallel::make_mesh(stage_ranks_[section], devices_->backend(section),
                                   workload::mesh_shape_of(scenario, stage), scenario.graph.stage_name(stage),
                                   std::move(tied), sums());
    });
    return std::move(*mesh);
}

Job::StageReport Job::add_stage(int stage, int replica, parallel::Mesh mesh) {
    const workload::Scenario& scenario = preflight_.scenario();
    const int s = scenario.graph.stages[stage].section;
    const graph::Section& section = scenario.graph.sections[s];
    const workload::StageMemory& memory = preflight_.memory().stages[stage];
    backend::Backend& backend = devices_->backend(s);
    StageReport report;
    if (backend.stream()) report.transports = mesh.describe_transports();
    auto module =
        preflight_.emulation()
            ? preflight_.emulation()->make_module(
                  backend, stage, std::move(mesh),
                  [&waiter = context_.world.waiter()](double time_s) { waiter.sleep_until(time_s); })
            : model::make_module(backend, scenario.models[s], workload::role_of(scenario, stage),
                                 std::move(mesh), model::InitialWeights::zeros);
    report.parameters = module->parameters().count();
    report.attention_plans = prepare_attention(*module, s);
    std::vector<channel::Channel*> inputs, outputs;
    for (const EdgeEnd& e : edges_) {
        if (e.to == stage) inputs.push_back(e.channel);
        if (e.from == stage) outputs.push_back(e.channel);
    }
    const LocalStage::Settings settings{.section = s,
                                        .stage = stage,
                                        .index = scenario.graph.stages[stage].index,
                                        .name = section.name,
                                        .label = scenario.graph.stage_name(stage),
                                        .replica = replica,
                                        .lane_replicas = section.lane_replicas,
                                        .shares_experts = section.replicas_share_experts(),
                                        .window = memory.slots(),
                                        .backward = section.backward,
                                        .dtype = module->parameters().compute(),
                                        .saved_bytes = memory.footprint.saved,
                                        .emulated = emulated_sync(stage)};
    stages_.push_back(std::make_unique<LocalStage>(backend, settings, std::move(module),
                                                   context_.world.waiter(), std::move(inputs),
                                                   std::move(outputs), devices_->scratch(s)));
    return report;
}

EmulatedSync Job::emulated_sync(int stage) {
    if (!preflight_.emulation() || !preflight_.scenario().graph.section_of(stage).train) return {};
    if (!emulated_network_free_s_) emulated_network_free_s_ = std::make_shared<double>(0);
    return {preflight_.emulation()->step_end(stage), emulated_network_free_s_};
}

std::string Job::prepare_attention(model::Module& module, int s) {
    backend::FusedAttention* const attention = devices_->backend(s).fused_attention();
    if (!attention) return {};
    const std::size_t before = attention->plans();
    const auto began = std::chrono::steady_clock::now();
    const std::set<std::int64_t> rows = preflight_.table().sequence_rows(s);
    module.prepare(std::vector(rows.begin(), rows.end()),
                   preflight_.table().most_sequences(preflight_.scenario().full_micro_batch(s), s));
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - began;
    if (attention->plans() == before) return {};
    return fmt::format("{} plans of attention built in {:.1f} s", attention->plans() - before,
                       elapsed.count());
}

void Job::describe_section(int s, std::vector<StageReport> reports) {
    const comm::Communicator& world = context_.world;
    const workload::Scenario& scenario = preflight_.scenario();
    const graph::SectionGraph& graph = scenario.graph;
    const graph::Section& section = graph.sections[s];
    const std::string trained = !section.train ? "frozen"
                                : scenario.tuning[s].lora.enabled()
                                    ? fmt::format("LoRA of rank {}", scenario.tuning[s].lora.rank)
                                : scenario.tuning[s].frozen.empty() ? "trained"
                                                                    : "partly trained";
    const int stages = section.layout.stage_count();
    if (stages > 1)
        description_.push_back(fmt::format(
            "section {}: model {} on {}, {} stages, {}, micro_batch {} samples", section.name,
            scenario.models[s].name, graph::describe_ranks(section), stages, trained, section.micro_batch));
    for (int stage = section.first_stage; stage <= graph.last_stage(s); ++stage) {
        const int index = graph.stages[stage].index;
        StageReport report;
        if (graph::holds(graph, stage, world.rank())) report = reports[index / section.layout.pp];
        // tp ranks hold different numbers where a degree does not divide a size.
        const auto parameters = static_cast<std::int64_t>(world.max(static_cast<double>(report.parameters)));
        const std::string memory = workload::describe(preflight_.memory().stages[stage]);
        const Range layers = scenario.layers[stage];
        if (stages > 1)
            description_.push_back(fmt::format(
                "  stage {} from rank {}: layers {} to {}, {} parameters per rank, {}", index,
                graph::first_rank_of(graph, stage), layers.begin, layers.end - 1, parameters, memory));
        else
            description_.push_back(fmt::format(
                "section {}: model {} on {}, {} parameters per rank, {}\n  micro_batch {} samples, {}",
                section.name, scenario.models[s].name, graph::describe_ranks(section), parameters, trained,
                section.micro_batch, memory));
        if constexpr (!backend::kCuda) continue;
        for (std::string* line : {&report.transports, &report.attention_plans}) {
            world.broadcast(*line, graph::first_rank_of(graph, stage));
            if (!line->empty())
                description_.push_back(fmt::format("  section {}: {}", graph.stage_name(stage), *line));
        }
    }
}

std::vector<LocalStage*> local_stages(Job& job) {
    std::vector<LocalStage*> stages;
    for (auto& stage : job.stages()) stages.push_back(stage.get());
    return stages;
}

}  // namespace maestro::train
