#include "workload/memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "graph/grid.hpp"
#include "transport/choice.hpp"
#include "workload/layout.hpp"
#include "workload/models.hpp"
#include "workload/slot_rows.hpp"

namespace maestro::workload {

namespace {

double mib(double bytes) {
    return bytes / (1 << 20);
}

/// Bytes of a micro-batch of samples as read: pixels by a section that takes pictures of so many channels,
/// tokens by others (0).
double sample_bytes(std::span<const model::SampleShape> batch, int channels) {
    double bytes = 0;
    for (const model::SampleShape& shape : batch) {
        if (channels == 0) bytes += 9.0 * static_cast<double>(shape.tokens);
        for (const auto& p : shape.pictures) bytes += 1.0 * p.height * p.width * channels;
    }
    return bytes;
}

/// Bytes that one more micro-batch in flight of `section` costs this rank.
double bytes_in_flight(const MemoryPlan& plan, const graph::SectionGraph& graph, int section, int rank) {
    double bytes = 0;
    if (graph::holds(graph.sections[section], rank))
        bytes += static_cast<double>(plan.sections[section].footprint.saved);
    for (std::size_t e = 0; e < plan.channels.size(); ++e) {
        if (graph.edges[e].from == section)
            bytes += static_cast<double>(channel::slot_bytes(plan.channels[e], rank).both() +
                                         channel::slot_message_bytes(plan.channels[e], rank));
    }
    return bytes;
}

Lane lane_of(const Scenario& scenario, int section) {
    return {section, scenario.full_micro_batch(section), degrees_of(scenario.graph.sections[section])};
}

/// Rows of the fullest slice of such a micro-batch, and of the fullest of its tp ranks.
struct Fullest {
    std::int64_t slice = 0, rank = 0;
};

Fullest fullest_of(const Scenario& scenario, const SampleTable& table, int section,
                   std::span<const model::SampleShape> batch) {
    const parallel::Degrees degrees = degrees_of(scenario.graph.sections[section]);
    const parallel::Partition partition = partition_of(packing_of(table, section, batch), degrees);
    Fullest fullest;
    for (int c = 0; c < degrees.cp; ++c)
        fullest = {std::max(fullest.slice, partition.slice_rows(c)),
                   std::max(fullest.rank, partition.tp_rows(c)[0])};
    return fullest;
}

/// Of any rank of a lane: the first of each slice holds no less than the others of it.
model::Footprint measure_lane(const Scenario& scenario, int section,
                              std::span<const model::SampleShape> batch, backend::Traits traits, bool train,
                              Probes& probes) {
    model::Footprint most;
    const parallel::Degrees degrees = degrees_of(scenario.graph.sections[section]);
    for (int c = 0; c < degrees.cp; ++c) {
        Probe probe{.spec = scenario.models[section],
                    .role = role_of(scenario, section),
                    .shape = mesh_shape_of(scenario, section),
                    .rank = c * degrees.tp,
                    .options = {.train = train, .traits = traits, .worst_case = degrees.cp > 1}};
        for (const model::SampleShape& shape : batch) probe.add(shape);
        const model::Footprint& own = probes.footprint(probe);
        const std::size_t saved = std::max(most.saved, own.saved),
                          scratch = std::max(most.scratch, own.scratch);
        if (c == 0) most = own;
        most.saved = saved;
        most.scratch = scratch;
    }
    return most;
}

/// How much more a rank may hold of another micro-batch than of `longest`, which may be dealt more evenly.
double unevenness(const Scenario& scenario, const SampleTable& table, int section,
                  std::span<const model::SampleShape> longest) {
    const Fullest fullest = fullest_of(scenario, table, section, longest);
    const Lane lane = lane_of(scenario, section);
    if (lane.degrees.cp == 1 || fullest.rank == 0) return 1;
    const std::int64_t slice = most_slice_rows(table, lane),
                       rank = most_sent(table, lane) * table.unit(section);
    return std::max({1.0, static_cast<double>(slice) / static_cast<double>(fullest.slice),
                     static_cast<double>(rank) / static_cast<double>(fullest.rank)});
}

/// Of any rank: to the others of its groups for tp, cp, shared keys and gradients (train::Job makes these).
int links_of(const Scenario& scenario, int section) {
    const parallel::MeshShape shape = mesh_shape_of(scenario, section);
    const auto others = [](int ranks) { return std::min(ranks - 1, transport::kMaxNcclConnections); };
    return others(shape.degrees.tp) + others(shape.degrees.cp) + others(shape.kv_ranks()) +
           (shape.trainable ? others(shape.data_ranks()) : 0);
}

channel::Side side_of(const graph::SectionGraph& graph, const graph::Section& section) {
    channel::Side side;
    for (int replica = 0; replica < section.layout.dp; ++replica)
        side.push_back(graph::ranks_of(graph, graph::lane_of(section, replica)));
    return side;
}

channel::ChannelSpec channel_of(const Scenario& scenario, const graph::Edge& edge, const SampleTable& table,
                                const SectionMemory& producer) {
    const graph::SectionGraph& graph = scenario.graph;
    const auto& up = graph.sections[edge.from];
    const auto& down = graph.sections[edge.to];
    const model::Role role = role_of(scenario, edge.from);
    return {.name = up.name + "-" + down.name,
            .producers = side_of(graph, up),
            .consumers = side_of(graph, down),
            .width = role.output_width,
            .dtype = role.compute,
            .window = producer.window,
            .max_sent = producer.max_rows,
            .max_received = most_received(table, lane_of(scenario, edge.from), lane_of(scenario, edge.to)),
            .max_samples = scenario.global_batch,
            .carries_gradient = edge.gradient,
            .pointer = graph::passes_pointer(graph, edge)};
}

}  // namespace

void MemoryPlan::set_window(int section, int window, const graph::SectionGraph& graph) {
    sections[section].window = window;
    for (std::size_t e = 0; e < channels.size(); ++e)
        if (graph.edges[e].from == section) channels[e].window = window;
}

std::string RankMemory::describe() const {
    std::string text = fmt::format("{:.0f} MiB", mib(total()));
    const char* before = ": ";
    for (const auto& [bytes, what] :
         {std::pair{weights, "of weights and gradients"}, std::pair{optimizer, "of the optimizer's moments"},
          std::pair{activations, "of activations"}, std::pair{scratch, "of scratch"},
          std::pair{channels, "of rows under way"}, std::pair{messages, "of messages"},
          std::pair{samples, "of samples"}, std::pair{libraries, "of libraries' workspace"},
          std::pair{reserve, "in reserve for libraries"}})
        if (bytes > 0) {
            text += fmt::format("{}{:.0f} {}", before, mib(bytes), what);
            before = ", ";
        }
    return text;
}

MemoryPlan measure_memory(const Scenario& scenario, const SampleTable& table, Probes& probes,
                          backend::Traits traits, bool train) {
    const graph::SectionGraph& graph = scenario.graph;
    MemoryPlan plan;
    plan.shares_scratch = traits.shares_memory;
    for (int s = 0; s < static_cast<int>(graph.sections.size()); ++s) {
        const graph::Section& section = graph.sections[s];
        SectionMemory memory{.footprint = {}, .window = section.window, .loss = section.loss};
        const model::Role role = role_of(scenario, s);
        const int batch = scenario.full_micro_batch(s);
        const auto worst = table.worst_micro_batch(batch), longest = table.longest_micro_batch(batch, s);
        memory.footprint = measure_lane(scenario, s, worst, traits, train, probes);
        // What is kept grows with the rows alone, and no micro-batch has more of them than the longest.
        memory.footprint.saved = measure_lane(scenario, s, longest, traits, train, probes).saved;
        const double more = unevenness(scenario, table, s, longest);
        for (std::size_t* bytes : {&memory.footprint.saved, &memory.footprint.scratch})
            if (more > 1) *bytes = static_cast<std::size_t>(std::ceil(more * static_cast<double>(*bytes)));
        // What is in use, and what lies ready behind it: at most the rest of a step.
        const double in_use = sample_bytes(worst, table.sees_pixels(s) ? scenario.models[s].channels : 0);
        const auto a_round = static_cast<double>(std::int64_t{section.micro_batch} * section.layout.dp);
        const double batches = static_cast<double>(scenario.global_batch) / a_round;
        memory.samples = in_use + std::max(in_use, std::min<double>(kBytesAhead, in_use * batches));
        for (const graph::Edge& e : graph.edges)
            if (e.from == s) {
                const int below = scenario.full_micro_batch(e.to);
                memory.least =
                    std::max(memory.least, (below + section.micro_batch - 1) / section.micro_batch);
            }
        memory.most =
            static_cast<int>(std::clamp(std::ceil(batches), 1.0 * memory.least, 1.0 * graph::kMostInFlight));
        memory.links = links_of(scenario, s);
        if (role.emits) memory.max_rows = most_sent(table, lane_of(scenario, s));
        plan.sections.push_back(memory);
    }
    for (const graph::Edge& e : graph.edges)
        plan.channels.push_back(channel_of(scenario, e, table, plan.sections[e.from]));
    for (int s = 0; s < static_cast<int>(plan.sections.size()); ++s)
        if (plan.sections[s].loss && plan.sections[s].window == 0)
            plan.set_window(s, plan.sections[s].most, graph);
    return plan;
}

double scratch_of(const MemoryPlan& plan, int section) {
    const model::Footprint& footprint = plan.sections[section].footprint;
    return static_cast<double>(std::max(footprint.scratch, footprint.reduce_scratch));
}

RankMemory memory_of(const MemoryPlan& plan, const graph::SectionGraph& graph, int rank) {
    RankMemory memory;
    for (std::size_t s = 0; s < plan.sections.size(); ++s) {
        if (!graph::holds(graph.sections[s], rank)) continue;
        const SectionMemory& own = plan.sections[s];
        memory.weights += static_cast<double>(own.footprint.parameters);
        memory.optimizer += 2.0 * sizeof(float) * static_cast<double>(own.footprint.optimizer);
        memory.activations += static_cast<double>(own.footprint.saved) * own.slots();
        const double scratch = scratch_of(plan, static_cast<int>(s));
        memory.scratch = plan.shares_scratch ? std::max(memory.scratch, scratch) : memory.scratch + scratch;
        memory.samples = std::max(memory.samples, own.samples);
        memory.libraries += plan.libraries.workspace;
        memory.reserve += plan.libraries.link * own.links;
    }
    memory.reserve += plan.libraries.reserve;
    for (const channel::ChannelSpec& spec : plan.channels) {
        memory.channels += static_cast<double>(channel::rank_bytes(spec, rank));
        memory.messages += static_cast<double>(channel::message_bytes(spec, rank));
        if (plan.libraries.edges)
            memory.reserve += static_cast<double>(channel::direct_bytes(spec, rank, plan.libraries.by_nccl));
    }
    return memory;
}

std::vector<int> windows_within(const MemoryPlan& plan, const graph::SectionGraph& graph, int rank,
                                double bytes) {
    const double spare = bytes - memory_of(plan, graph, rank).total();
    std::vector<double> each;
    int open = 0;
    for (int s = 0; s < static_cast<int>(plan.sections.size()); ++s) {
        const bool chosen = plan.sections[s].window > 0;
        each.push_back(chosen ? 0.0 : bytes_in_flight(plan, graph, s, rank));
        if (each.back() > 0) ++open;
    }
    std::vector<int> windows;
    for (std::size_t s = 0; s < plan.sections.size(); ++s) {
        const SectionMemory& section = plan.sections[s];
        if (section.window > 0)
            windows.push_back(section.window);
        else if (each[s] == 0)
            windows.push_back(section.most);
        else
            windows.push_back(static_cast<int>(
                std::clamp(spare / open / each[s], 1.0 * section.least, 1.0 * section.most)));
    }
    return windows;
}

void choose_windows(MemoryPlan& plan, const graph::SectionGraph& graph, double bytes) {
    std::vector<int> windows;
    for (const SectionMemory& s : plan.sections) windows.push_back(s.window > 0 ? s.window : s.most);
    for (const graph::Section& section : graph.sections) {  // ranks of a section are alike
        const std::vector<int> own = windows_within(plan, graph, section.first_rank, bytes);
        for (std::size_t s = 0; s < windows.size(); ++s) windows[s] = std::min(windows[s], own[s]);
    }
    for (std::size_t s = 0; s < windows.size(); ++s) plan.set_window(static_cast<int>(s), windows[s], graph);
}

int fullest_rank(const MemoryPlan& plan, const graph::SectionGraph& graph) {
    int fullest = 0;
    double most = 0;
    for (const graph::Section& section : graph.sections)
        if (const double bytes = memory_of(plan, graph, section.first_rank).total(); bytes > most) {
            most = bytes;
            fullest = section.first_rank;
        }
    return fullest;
}

std::string describe(const Libraries& libraries) {
    std::string text = fmt::format(
        "of a GPU's memory libraries have {:.0f} MiB of workspace for each section, and in reserve "
        "{:.0f} MiB for code and handles",
        mib(libraries.workspace), mib(libraries.reserve));
    if (libraries.link > 0)
        text += fmt::format(
            ", {:.0f} MiB for NCCL's buffers to each other rank of a group (at most {} of a "
            "group)",
            mib(libraries.link), transport::kMaxNcclConnections);
    if (libraries.edges && libraries.by_nccl)
        text += fmt::format(", {:.0f} MiB for each way between two ranks of an edge by NCCL",
                            mib(static_cast<double>(channel::kNcclConnectionBytes)));
    return text;
}

std::string describe(const SectionMemory& memory) {
    return fmt::format(
        "window {}, {:.1f} MiB a micro-batch, {:.1f} MiB scratch, {:.1f} MiB weights and gradients",
        memory.window, mib(static_cast<double>(memory.footprint.saved)),
        mib(static_cast<double>(memory.footprint.scratch)),
        mib(static_cast<double>(memory.footprint.parameters)));
}

}  // namespace maestro::workload
