#include "workload/memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "graph/grid.hpp"
#include "ops/dispatch.hpp"
#include "transport/choice.hpp"
#include "workload/costs.hpp"
#include "workload/layout.hpp"
#include "workload/models.hpp"
#include "workload/slot_rows.hpp"

namespace maestro::workload {

namespace {

double mib(double bytes) {
    return bytes / (1 << 20);
}

/// Returns the bytes of a micro-batch of samples as a section reads them from the file: the items of its kind
/// for an encoder, tokens for the others.
double sample_bytes(std::span<const model::SampleShape> batch, const model::Units& units) {
    double bytes = 0;
    for (const model::SampleShape& shape : batch) {
        // A token has 4 bytes, its loss weight 4 and its flags 1.
        if (!units.encodes()) bytes += 9.0 * static_cast<double>(shape.tokens);
        for (const Item& item : shape.items) bytes += static_cast<double>(units.bytes(item));
    }
    return bytes;
}

/// Returns the bytes that one more micro-batch of the stage in flight takes on this rank.
double bytes_in_flight(const MemoryPlan& plan, const graph::SectionGraph& graph, int stage, int rank) {
    double bytes = 0;
    if (graph::holds(graph, stage, rank)) {
        const model::Footprint& footprint = plan.stages[stage].footprint;
        bytes += static_cast<double>(footprint.saved + (plan.shares_scratch ? footprint.host.saved : 0));
    }
    for (std::size_t e = 0; e < plan.channels.size(); ++e) {
        if (graph.stage_edges[e].from == stage)
            bytes += static_cast<double>(channel::slot_bytes(plan.channels[e], rank).both() +
                                         channel::slot_flag_bytes(plan.channels[e], rank) +
                                         channel::slot_message_bytes(plan.channels[e], rank));
    }
    return bytes;
}

LaneSpec lane_of(const Scenario& scenario, int section) {
    return {section, scenario.full_micro_batch(section), degrees_of(scenario.graph.sections[section])};
}

/// The most rows of a micro-batch that one slice of a replica holds, and that one tp rank of a slice holds.
struct MaxLoad {
    std::int64_t slice = 0, rank = 0;
};

MaxLoad max_load_of(const Scenario& scenario, const SampleTable& table, int section,
                    std::span<const model::SampleShape> batch) {
    const parallel::Degrees degrees = degrees_of(scenario.graph.sections[section]);
    const parallel::Partition partition = partition_of(pack_sequences(table, section, batch), degrees);
    MaxLoad max_load;
    for (int c = 0; c < degrees.cp; ++c)
        max_load = {std::max(max_load.slice, partition.slice_rows(c)),
                    std::max(max_load.rank, partition.tp_rows(c)[0])};
    return max_load;
}

/// Returns the largest footprint of a rank of the stage's lane. The first tp rank of a slice holds no less
/// than the others of the slice, so that one is measured for all of them.
model::Footprint measure_lane(const Scenario& scenario, int stage, std::span<const model::SampleShape> batch,
                              backend::Traits traits, bool train, Probes& probes) {
    model::Footprint largest;
    const parallel::Degrees degrees = degrees_of(scenario.graph.section_of(stage));
    // Ranks that share experts need more where rows of other nodes pass through them.
    std::vector<std::vector<int>> expert_nodes = expert_nodes_of(scenario, stage);
    if (expert_nodes.empty()) expert_nodes.emplace_back();
    for (std::size_t i = 0; i < degrees.cp * expert_nodes.size(); ++i) {
        const int c = static_cast<int>(i) % degrees.cp;
        Probe probe{.spec = scenario.models[scenario.graph.stages[stage].section],
                    .role = role_of(scenario, stage),
                    .shape = mesh_shape_of(scenario, stage),
                    .links = {.tp = {},
                              .cp = {},
                              .data = {},
                              .expert_nodes = expert_nodes[i / static_cast<std::size_t>(degrees.cp)]},
                    .rank = c * degrees.tp,
                    .options = {.train = train, .traits = traits, .worst_case = degrees.cp > 1}};
        for (const model::SampleShape& shape : batch) probe.add(shape);
        const model::Footprint footprint = probes.footprint(probe);
        const std::size_t saved = std::max(largest.saved, footprint.saved),
                          scratch = std::max(largest.scratch, footprint.scratch);
        const model::HostBytes host{std::max(largest.host.saved, footprint.host.saved),
                                    std::max(largest.host.scratch, footprint.host.scratch)};
        if (i == 0) largest = footprint;
        largest.saved = saved;
        largest.scratch = scratch;
        largest.host = host;
    }
    return largest;
}

/// Returns the factor, at least 1, by which a rank may hold more rows of another micro-batch than of
/// `longest`: rows are not always distributed as evenly as those.
double imbalance(const Scenario& scenario, const SampleTable& table, int section,
                 std::span<const model::SampleShape> longest) {
    const MaxLoad max_load = max_load_of(scenario, table, section, longest);
    const LaneSpec lane = lane_of(scenario, section);
    if (lane.degrees.cp == 1 || max_load.rank == 0) return 1;
    const std::int64_t slice = max_slice_rows(table, lane),
                       rank = max_rows_sent(table, lane) * table.units(section).unit();
    return std::max({1.0, static_cast<double>(slice) / static_cast<double>(max_load.slice),
                     static_cast<double>(rank) / static_cast<double>(max_load.rank)});
}

/// Throws Error(bad_deck) for a micro-batch with more rows than 32 bits number, or with more choices of
/// experts among the rows of the ranks that share these.
void check_rows(const Scenario& scenario, const SampleTable& table, int stage,
                std::span<const model::SampleShape> batch) {
    const int s = scenario.graph.stages[stage].section;
    const std::vector<std::int64_t> lengths = pack_sequences(table, s, batch).lengths;
    std::int64_t numbers = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    std::string what = "rows";
    const parallel::MeshShape shape = mesh_shape_of(scenario, stage);
    if (shape.has_experts) {
        const int replica = shape.degrees.ranks();
        numbers *= std::int64_t{(shape.experts.ranks() + replica - 1) / replica} *
                   scenario.models[s].experts.per_token;
        what = "choices of experts by rows of the ranks that share them";
    }
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    if (numbers > kMost)
        throw Error(ExitCode::bad_deck,
                    fmt::format("section.{}.micro_batch: a micro-batch of {} samples has up to {} {}, and at "
                                "most {} can be numbered; make micro_batch smaller",
                                scenario.graph.sections[s].name, batch.size(), numbers, what, kMost),
                    Scope::all_ranks);
}

/// Returns the share of the batch that a replica has, in micro-batches of its section.
double micro_batches_of(const Scenario& scenario, int section) {
    const graph::Section& s = scenario.graph.sections[section];
    return static_cast<double>(scenario.global_batch) /
           static_cast<double>(std::int64_t{s.micro_batch} * s.layout.dp);
}

channel::Side side_of(const graph::SectionGraph& graph, int stage) {
    channel::Side side;
    for (int group = 0; group < graph.section_of(stage).replica_groups(); ++group)
        side.push_back(graph::ranks_of(graph, graph::lane_of(graph, stage, group)));
    return side;
}

channel::ChannelSpec channel_of(const Scenario& scenario, const graph::StageEdge& edge,
                                const SampleTable& table, const StageMemory& producer) {
    const graph::SectionGraph& graph = scenario.graph;
    const model::Role role = role_of(scenario, edge.from);
    // All parts of a micro-batch may be sent to one part of a consumer.
    LaneSpec from = lane_of(scenario, graph.stages[edge.from].section);
    from.micro_batch = scenario.full_lane_micro_batch(from.section);
    const LaneSpec to = lane_of(scenario, graph.stages[edge.to].section);
    return {.name = edge.within_section()
                        ? fmt::format("{}-{}", graph.stage_name(edge.from), graph.stages[edge.to].index)
                        : graph.section_of(edge.from).name + "-" + graph.section_of(edge.to).name,
            .producers = side_of(graph, edge.from),
            .consumers = side_of(graph, edge.to),
            .width = role.output_width,
            .dtype = role.compute,
            .window = producer.window,
            .max_sent = producer.max_rows,
            // Stages of a section hold the same rows on corresponding ranks.
            .max_received = edge.within_section() ? producer.max_rows : max_rows_received(table, from, to),
            .max_samples = from.micro_batch,
            .carries_gradient = edge.gradient,
            .pointer = graph::passes_pointer(graph, edge)};
}

}  // namespace

void MemoryPlan::set_window(int stage, int window, const graph::SectionGraph& graph) {
    stages[stage].window = window;
    for (std::size_t e = 0; e < channels.size(); ++e)
        if (graph.stage_edges[e].from == stage) channels[e].window = window;
}

std::string RankMemory::describe() const {
    std::string text = fmt::format("{:.0f} MiB", mib(needed()));
    const char* before = ": ";
    const double here = on_gpu ? 0 : 1;  // what is in the memory of a GPU's host does not count
    for (const auto& [bytes, what] :
         {std::pair{weights, optimizer > 0 ? "for weights and gradients" : "for weights"},
          std::pair{optimizer, "for the optimizer's moments"}, std::pair{activations, "for activations"},
          std::pair{scratch, "for scratch"}, std::pair{channels, "for rows in transit"},
          std::pair{decoding, "to decode answers"}, std::pair{here * messages, "for messages"},
          std::pair{here * samples, "for samples"},
          std::pair{here * experts, "for the exchange of experts' rows"},
          std::pair{snapshot, "for the copy that is saved"},
          std::pair{libraries, "for the workspace of libraries"},
          std::pair{reserve, "reserved for libraries"}})
        if (bytes > 0) {
            text += fmt::format("{}{:.0f} {}", before, mib(bytes), what);
            before = ", ";
        }
    return text;
}

MemoryPlan measure_memory(const Scenario& scenario, const SampleTable& table, Probes& probes,
                          backend::Traits traits, bool train) {
    std::vector<StageMemory> stages;
    for (int stage = 0; stage < static_cast<int>(scenario.graph.stages.size()); ++stage)
        stages.push_back(measure_stage(scenario, stage, table, probes, traits, train));
    return join_stages(scenario, table, traits, std::move(stages));
}

StageMemory measure_stage(const Scenario& scenario, int stage, const SampleTable& table, Probes& probes,
                          backend::Traits traits, bool train) {
    const int s = scenario.graph.stages[stage].section;
    const graph::Section& section = scenario.graph.sections[s];
    const model::Role role = role_of(scenario, stage);
    StageMemory memory;
    memory.window = section.window == 0 ? 0 : window_of(scenario, stage);
    memory.loss = role.computes_loss();
    const int batch = scenario.full_micro_batch(s);
    const auto worst = table.worst_micro_batch(batch), longest = table.longest_micro_batch(batch, s);
    check_rows(scenario, table, stage, worst);
    // A micro-batch of as many rows may have more bytes, which a GPU copies into its scratch memory.
    auto largest = worst;
    for (model::SampleShape& shape : largest)
        for (Item& item : shape.items) item = table.units(s).largest_like(item);
    memory.footprint = measure_lane(scenario, stage, largest, traits, train, probes);
    // Activations kept for backward grow with the rows alone, and no micro-batch has more rows than the
    // longest.
    const model::Footprint of_longest = measure_lane(scenario, stage, longest, traits, train, probes);
    memory.footprint.saved = of_longest.saved;
    memory.footprint.host = of_longest.host;
    const double more = imbalance(scenario, table, s, longest);
    for (std::size_t* bytes : {&memory.footprint.saved, &memory.footprint.scratch,
                               &memory.footprint.host.saved, &memory.footprint.host.scratch})
        if (more > 1) *bytes = static_cast<std::size_t>(std::ceil(more * static_cast<double>(*bytes)));
    // Of an encoder, only the first stage reads items.
    if (!table.units(s).encodes() || role.stage.first()) memory.samples = sample_bytes(worst, table.units(s));
    memory.samples_of_step = memory.samples * std::max(1.0, micro_batches_of(scenario, s));
    memory.links = links_of(mesh_shape_of(scenario, stage));
    // The residual stream has a row for every token or patch, of which several may become one row of output.
    if (role.emits)
        memory.max_rows =
            max_rows_sent(table, lane_of(scenario, s)) * (role.stage.last() ? 1 : table.units(s).unit());
    return memory;
}

MemoryPlan join_stages(const Scenario& scenario, const SampleTable& table, backend::Traits traits,
                       std::vector<StageMemory> stages) {
    const graph::SectionGraph& graph = scenario.graph;
    MemoryPlan plan;
    plan.shares_scratch = traits.shares_memory;
    plan.moment_bytes = size_of(ops::accumulate_type(scenario.compute));
    plan.stages = std::move(stages);
    for (int stage = 0; stage < static_cast<int>(plan.stages.size()); ++stage) {
        const int s = graph.stages[stage].section;
        StageMemory& memory = plan.stages[stage];
        for (const graph::Edge& e : graph.edges)
            if (e.from == s) {
                const int below = scenario.full_lane_micro_batch(e.to),
                          here = graph.sections[s].lane_micro_batch();
                memory.min_window = std::max(memory.min_window, (below + here - 1) / here);
            }
        memory.max_window = static_cast<int>(std::clamp(std::ceil(micro_batches_of(scenario, s)),
                                                        1.0 * memory.min_window, 1.0 * graph::kMaxInFlight));
        if (const StageWindows windows = windows_of(scenario, stage); windows.most > 0) {
            memory.min_window = windows.least;
            memory.max_window = windows.most;
        }
    }
    for (const graph::StageEdge& e : graph.stage_edges)
        plan.channels.push_back(channel_of(scenario, e, table, plan.stages[e.from]));
    for (int s = 0; s < static_cast<int>(plan.stages.size()); ++s)
        if (plan.stages[s].loss && plan.stages[s].window == 0)
            plan.set_window(s, plan.stages[s].max_window, graph);
    return plan;
}

int links_of(const parallel::MeshShape& shape) {
    const auto others = [](int ranks) { return std::min(ranks - 1, transport::kMaxNcclConnections); };
    return others(shape.degrees.tp) + others(shape.degrees.cp) + others(shape.kv_ranks()) +
           (shape.has_experts ? others(shape.experts.ranks()) : 0) +
           (shape.trainable ? others(shape.data_ranks()) + others(shape.tied.count) : 0) +
           (shape.trainable && shape.has_own_expert_data() ? others(shape.copies(parallel::kExpertDataAxes))
                                                           : 0);
}

double scratch_of(const MemoryPlan& plan, int stage) {
    return static_cast<double>(plan.stages[stage].footprint.scratch);
}

double snapshot_of(const MemoryPlan& plan, const graph::SectionGraph& graph, int rank) {
    double bytes = 0;
    for (int s = 0; plan.snapshots && s < static_cast<int>(plan.stages.size()); ++s) {
        if (!graph::holds(graph, s, rank)) continue;
        const model::Footprint& footprint = plan.stages[s].footprint;
        bytes += 3.0 * sizeof(float) * static_cast<double>(footprint.optimizer);
        if (!plan.shares_scratch) bytes += static_cast<double>(footprint.frozen_shard);
    }
    return bytes;
}

RankMemory memory_of(const MemoryPlan& plan, const graph::SectionGraph& graph, int rank) {
    RankMemory memory;
    memory.on_gpu = !plan.shares_scratch;
    double samples_of_step = 0, host_scratch = 0;
    std::vector<double> scratch(graph.sections.size(), 0.0);  // of tasks; stages of a section share it
    double sync_scratch = 0;  // of sums, which run beside the tasks of all stages
    for (int s = 0; s < static_cast<int>(plan.stages.size()); ++s) {
        if (!graph::holds(graph, s, rank)) continue;
        const StageMemory& stage = plan.stages[s];
        memory.weights += static_cast<double>(stage.footprint.parameters);
        memory.gradients += static_cast<double>(stage.footprint.gradients);
        memory.optimizer +=
            2.0 * static_cast<double>(plan.moment_bytes) * static_cast<double>(stage.footprint.optimizer);
        memory.activations += static_cast<double>(stage.footprint.saved) * stage.slots();
        memory.experts += static_cast<double>(stage.footprint.host.saved) * stage.slots();
        host_scratch = std::max(host_scratch, static_cast<double>(stage.footprint.host.scratch));
        memory.decoding += stage.decoding;
        double& of_section = scratch[graph.stages[s].section];
        of_section = std::max(of_section, scratch_of(plan, s));
        sync_scratch += static_cast<double>(stage.footprint.sync_scratch);
        memory.samples = std::max(memory.samples, stage.samples);
        samples_of_step += stage.samples_of_step;
        memory.transfers += plan.libraries.link * stage.links;
    }
    for (std::size_t s = 0; s < graph.sections.size(); ++s) {
        if (!graph::holds(graph.sections[s], rank)) continue;
        memory.scratch =
            plan.shares_scratch ? std::max(memory.scratch, scratch[s]) : memory.scratch + scratch[s];
        memory.libraries += plan.libraries.workspace;
    }
    memory.scratch += sync_scratch;
    memory.sums = sync_scratch;
    memory.experts += host_scratch;
    // The stages of a rank take their samples in turn, from one prefetcher: the micro-batch in use, and what
    // is read ahead of it, at most the rest of a step.
    memory.samples += std::max(memory.samples, std::min<double>(kBytesAhead, samples_of_step));
    (plan.shares_scratch ? memory.snapshot : memory.host_copy) = snapshot_of(plan, graph, rank);
    for (const channel::ChannelSpec& spec : plan.channels) {
        memory.channels += static_cast<double>(channel::rank_bytes(spec, rank));
        memory.messages += static_cast<double>(channel::message_bytes(spec, rank));
        if (plan.libraries.edges)
            memory.transfers += static_cast<double>(channel::direct_staging(spec, rank));
    }
    memory.reserve = memory.transfers;
    memory.reserve += plan.libraries.reserve;
    return memory;
}

std::vector<int> windows_within(const MemoryPlan& plan, const graph::SectionGraph& graph, int rank,
                                double bytes) {
    // Open windows count nothing in the plan, so that this is what is left for all of them.
    const double spare = bytes - memory_of(plan, graph, rank).needed();
    std::vector<double> each;
    int open = 0;
    for (int s = 0; s < static_cast<int>(plan.stages.size()); ++s) {
        const bool chosen = plan.stages[s].window > 0;
        each.push_back(chosen ? 0.0 : bytes_in_flight(plan, graph, s, rank));
        if (each.back() > 0) ++open;
    }
    std::vector<int> windows;
    for (std::size_t s = 0; s < plan.stages.size(); ++s) {
        const StageMemory& stage = plan.stages[s];
        if (stage.window > 0)
            windows.push_back(stage.window);
        else if (each[s] == 0)
            windows.push_back(stage.max_window);
        else
            windows.push_back(static_cast<int>(
                std::clamp(spare / open / each[s], 1.0 * stage.min_window, 1.0 * stage.max_window)));
    }
    return windows;
}

void choose_windows(MemoryPlan& plan, const graph::SectionGraph& graph, double bytes) {
    std::vector<int> windows;
    for (const StageMemory& s : plan.stages) windows.push_back(s.window > 0 ? s.window : s.max_window);
    for (int stage = 0; stage < static_cast<int>(graph.stages.size()); ++stage) {
        // All ranks of a stage need the same.
        const std::vector<int> allowed =
            windows_within(plan, graph, graph::first_rank_of(graph, stage), bytes);
        for (std::size_t s = 0; s < windows.size(); ++s) windows[s] = std::min(windows[s], allowed[s]);
    }
    for (std::size_t s = 0; s < windows.size(); ++s) plan.set_window(static_cast<int>(s), windows[s], graph);
}

int max_memory_rank(const MemoryPlan& plan, const graph::SectionGraph& graph) {
    int most_at = 0;
    double most = 0;
    for (int stage = 0; stage < static_cast<int>(graph.stages.size()); ++stage) {
        const int rank = graph::first_rank_of(graph, stage);
        if (const double bytes = memory_of(plan, graph, rank).needed(); bytes > most) {
            most = bytes;
            most_at = rank;
        }
    }
    return most_at;
}

std::string describe(const Libraries& libraries) {
    std::string text = fmt::format(
        "libraries on a GPU have {:.0f} MiB of workspace for each section, and a reserve of {:.0f} MiB for "
        "code and handles",
        mib(libraries.workspace), mib(libraries.reserve));
    if (libraries.link > 0)
        text += fmt::format(
            ", {:.0f} MiB for NCCL's buffers to each other rank of a group (at most {} of a "
            "group)",
            mib(libraries.link), transport::kMaxNcclConnections);
    return text;
}

std::string describe(const StageMemory& memory) {
    return fmt::format("window {}, {:.1f} MiB a micro-batch, {:.1f} MiB scratch, {:.1f} MiB {}",
                       memory.window, mib(static_cast<double>(memory.footprint.saved)),
                       mib(static_cast<double>(memory.footprint.scratch)),
                       mib(static_cast<double>(memory.footprint.parameters)),
                       memory.footprint.optimizer > 0 ? "weights and gradients" : "weights");
}

}  // namespace maestro::workload
