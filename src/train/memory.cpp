#include "train/memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <climits>

#include "comm/memory.hpp"
#include "train/weights.hpp"
#include "workload/models.hpp"

namespace maestro::train {

namespace {

constexpr double kMostWindows = 65535;  ///< what a channel counts to
constexpr double kShare = 0.8;  ///< of the free memory that open windows may fill; the rest is for files, MPI

double mib(double bytes) {
    return bytes / (1 << 20);
}

/// Bytes of one replica without its activations: weights, gradients, the optimizer's shard, and the moments
/// as they are gathered for a checkpoint.
double fixed_bytes(const model::Footprint& f, const graph::Section& section) {
    const double moments = f.trainable > 0 ? 3.0 / section.layout.dp + 2.0 : 0.0;
    return static_cast<double>(f.parameters) + moments * 4.0 * static_cast<double>(f.trainable);
}

/// Bytes of one slot: activations, and the rows on both ends of an edge.
double slot_bytes(const SectionMemory& memory, std::int64_t row_bytes) {
    return static_cast<double>(memory.footprint.saved) +
           2.0 * static_cast<double>(memory.max_rows * row_bytes);
}

/// Bytes of a micro-batch of samples as read.
double sample_bytes(std::span<const model::SampleShape> batch, int channels) {
    double bytes = 0;
    for (const model::SampleShape& shape : batch) {
        bytes += 9.0 * static_cast<double>(shape.tokens);
        for (const auto& p : shape.pictures) bytes += 1.0 * p.height * p.width * channels;
    }
    return bytes;
}

/// Collective; on all ranks alike, for the node that lacks most.
void refuse_what_does_not_fit(const Launch& launch, double needed, double available,
                              const std::vector<SectionMemory>& plan, const std::vector<double>& fixed,
                              const std::vector<double>& slot) {
    struct Node {
        double needed, available;
        char host[64];
    };
    Node own{launch.world.same_node().sum(needed), available, {}};
    launch.topology.host.copy(own.host, sizeof own.host - 1);
    const std::vector<Node> nodes = launch.world.allgather(own);
    const auto worst = std::max_element(nodes.begin(), nodes.end(), [](const Node& a, const Node& b) {
        return a.needed - a.available < b.needed - b.available;
    });
    if (worst->needed <= worst->available) return;
    std::string list;
    for (std::size_t i = 0; i < plan.size(); ++i)
        list += fmt::format(
            "\n  section {}: {:.0f} MiB of weights, gradients and moments, {} x {:.0f} MiB of activations "
            "and "
            "rows, {:.0f} MiB of scratch, {:.0f} MiB of samples",
            launch.graph.sections[i].name, mib(fixed[i]), plan[i].slots, mib(slot[i]),
            mib(static_cast<double>(plan[i].footprint.scratch)), mib(plan[i].samples));
    throw Error(
        ExitCode::device_memory,
        fmt::format("the ranks on {} need {:.0f} MiB of memory, {:.0f} MiB are free there; use a smaller "
                    "window or micro_batch, train.recompute = \"layer\", or fewer ranks a node. A "
                    "replica needs:{}",
                    worst->host, mib(worst->needed), mib(worst->available), list),
        Scope::all_ranks);
}

}  // namespace

std::vector<SectionMemory> plan_memory(const Launch& launch, const workload::SampleTable& table,
                                       std::int32_t marker) {
    const config::Deck& deck = launch.deck;
    const auto& sections = launch.graph.sections;
    const auto count = static_cast<int>(sections.size());
    std::vector<SectionMemory> plan(sections.size());
    std::vector<double> fixed(sections.size()), slot(sections.size());
    for (int s = 0; s < count; ++s) {
        const auto i = static_cast<std::size_t>(s);
        const graph::Section& section = sections[i];
        const model::Role role = workload::role_of(deck, s, marker);
        const auto worst = table.worst_micro_batch(
            static_cast<int>(std::min<std::int64_t>(section.micro_batch, deck.data.global_batch)));
        plan[i].footprint = model::measure(workload::spec_of(deck, s), role, worst);
        if (section.layout.dp > 1 && plan[i].footprint.trainable > INT_MAX)
            throw Error(
                ExitCode::bad_deck,
                fmt::format(
                    "section {}: {} trainable weights; more than {} on several replicas are not built "
                    "yet, set layout.dp = 1",
                    section.name, plan[i].footprint.trainable, INT_MAX),
                Scope::all_ranks);
        // What is in use, and what lies ready behind it: at most the rest of a step.
        const double in_use =
            sample_bytes(worst, table.sees_pixels(s) ? workload::spec_of(deck, s).channels : 0);
        const double batches = static_cast<double>(deck.data.global_batch) /
                               static_cast<double>(section.micro_batch * section.layout.dp);
        plan[i].samples = in_use + std::max(in_use, std::min<double>(kBytesAhead, in_use * batches));
        if (role.emits) plan[i].max_rows = table.rows_of(worst, s);
        fixed[i] = fixed_bytes(plan[i].footprint, section);
        slot[i] = slot_bytes(plan[i], role.output_width * static_cast<std::int64_t>(size_of(role.compute)));
    }

    // What this rank needs besides open windows, and how many of its sections leave theirs open.
    const bool placed = launch.world.size() == launch.graph.world;
    const auto mine = [&](const graph::Section& s) {
        return holds(s, placed ? launch.world.rank() : s.first_rank);
    };
    const auto slots_of = [](const graph::Section& s, int window) { return s.loss ? 1 : window; };
    double needed = 0, scratch = 0, samples = 0, open = 0;
    for (std::size_t i = 0; i < sections.size(); ++i) {
        if (!mine(sections[i])) continue;
        needed += fixed[i];
        scratch = std::max(scratch, static_cast<double>(plan[i].footprint.scratch));
        samples = std::max(samples, plan[i].samples);
        if (sections[i].window == 0 && !sections[i].loss)
            open += 1;
        else
            needed += slot[i] * slots_of(sections[i], sections[i].window);
    }
    needed += scratch + samples;
    const auto available = static_cast<double>(comm::available_memory());
    const double spare = kShare * available / launch.topology.ranks_on_node - needed;
    for (std::size_t i = 0; i < sections.size(); ++i) {
        const graph::Section& section = sections[i];
        plan[i].window = section.window;
        if (section.window == 0) {
            const std::int64_t a_step = std::int64_t{section.micro_batch} * section.layout.dp;
            const double most =
                std::min(static_cast<double>((deck.data.global_batch + a_step - 1) / a_step), kMostWindows);
            const double fit = mine(section) && !section.loss ? spare / open / std::max(slot[i], 1.0) : most;
            plan[i].window = static_cast<int>(std::clamp(-launch.world.max(-fit), 1.0, most));
            if (mine(section) && !section.loss) needed += slot[i] * plan[i].window;
        }
        plan[i].slots = slots_of(section, plan[i].window);
    }

    refuse_what_does_not_fit(launch, needed, available, plan, fixed, slot);
    return plan;
}

std::string describe(const SectionMemory& memory) {
    return fmt::format(
        "window {}, {:.1f} MiB a micro-batch, {:.1f} MiB scratch, {:.1f} MiB weights and gradients",
        memory.window, mib(static_cast<double>(memory.footprint.saved)),
        mib(static_cast<double>(memory.footprint.scratch)),
        mib(static_cast<double>(memory.footprint.parameters)));
}

}  // namespace maestro::train
