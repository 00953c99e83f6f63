#include "emulation/emulation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.hpp"
#include "comm/environment.hpp"
#include "emulation/emulated_module.hpp"
#include "workload/costs.hpp"
#include "workload/layout.hpp"
#include "workload/models.hpp"
#include "workload/rank_device.hpp"
#include "workload/task_factors.hpp"

namespace maestro::emulation {

namespace {

constexpr std::size_t kAlignment = 64;  ///< of the memory that arenas allocate
constexpr std::size_t kSign = 1 << 16;  ///< for the small sums with which the ranks of a lane begin a task

Scales scales_of(const config::Emulated& settings) {
    return {.time = settings.time_scale, .messages = settings.message_scale};
}

/// The rows of each sequence of a micro-batch.
std::vector<std::int64_t> lengths_of(const model::Batch& batch, const model::Units& units,
                                     std::span<const model::Units> encoders) {
    std::vector<std::int64_t> lengths;
    for (const model::SampleView& sample : batch.samples) {
        std::vector<Item> items;
        for (const model::ItemView& item : sample.items) items.push_back(item.item);
        if (!units.encodes()) {
            lengths.push_back(model::expanded_tokens(std::ssize(sample.tokens), items, encoders));
            continue;
        }
        for (const Item& item : items)
            if (units.reads(item.kind)) lengths.push_back(units.rows(item));
    }
    return lengths;
}

}  // namespace

double emulated_loss(std::int64_t step) {
    return 1 + 3 / (1 + 0.05 * static_cast<double>(step - 1));
}

Emulation::Emulation(const workload::Scenario& scenario, const config::Emulated& settings, double timeout_s)
    : scenario_(scenario), settings_(settings), timeout_s_(timeout_s), ends_([&] {
          workload::Probes probes;
          return workload::step_ends(scenario, probes);
      }()) {}

std::string Emulation::describe() const {
    return fmt::format(
        "emulated cluster {} ({}): one second of it takes {:g} s here, messages have {:g} of their size, "
        "losses "
        "depend on the step alone, and nothing is learned",
        scenario_.cluster->name, settings_.cluster, settings_.time_scale, settings_.message_scale);
}

workload::MemoryPlan Emulation::plan_memory(const workload::SampleTable& table, workload::Probes& probes,
                                            const config::Deck& deck, const std::string& advice) const {
    const workload::RankDevice device = workload::rank_device_of(*scenario_.cluster, deck.run);
    workload::MemoryPlan plan =
        workload::plan_memory(scenario_, table, probes, device, workload::plan_options_of(deck));
    if (const std::string lack = workload::shortage(plan, scenario_.graph, device); !lack.empty())
        throw Error(ExitCode::device_memory,
                    workload::refusal(
                        fmt::format("the emulated device of {} is too small: {}", settings_.cluster, lack),
                        advice, plan, scenario_.graph),
                    Scope::all_ranks);
    return plan;
}

void Emulation::check_times(const workload::CostModel& costs, const workload::SampleTable& table) const {
    double longest = 0;
    table.for_each([&](std::int64_t i) {
        const schedule::SampleCost cost = costs.of(i);
        for (std::size_t s = 0; s < cost.stages.size(); ++s)
            longest = std::max(longest, scenario_.full_micro_batch(scenario_.graph.stages[s].section) *
                                            std::max(cost.stages[s].forward_s, cost.stages[s].backward_s));
    });
    for (const workload::StepEnd& end : ends_)
        for (const workload::GroupTimes& group : end)
            longest = std::max({longest, group.sum_s, group.update_s, group.gather_s});
    longest *= settings_.time_scale;
    if (longest > timeout_s_)
        throw Error(
            ExitCode::bad_deck,
            fmt::format("emulated.time_scale: a task, a sum of gradients or an update would take {:.0f} s "
                        "here, and run.timeout_s lets a rank be silent for {:.0f}; make the one smaller or "
                        "the other larger",
                        longest, timeout_s_),
            Scope::all_ranks);
}

workload::MemoryPlan Emulation::scaled(const workload::MemoryPlan& plan,
                                       const workload::SampleTable& table) const {
    workload::MemoryPlan small = plan;
    // The emulated device is memory of the host, without libraries.
    small.shares_scratch = true;
    small.libraries = {};
    small.snapshots = false;
    const Scales scales = scales_of(settings_);
    const auto padded = [](double bytes) { return static_cast<std::size_t>(bytes) + kAlignment; };
    for (std::size_t e = 0; e < small.channels.size(); ++e) {
        channel::ChannelSpec& spec = small.channels[e];
        const config::Link& link =
            workload::link_from(scenario_.graph, *scenario_.cluster, scenario_.graph.stage_edges[e].from);
        const double row_bytes = static_cast<double>(spec.width) * static_cast<double>(size_of(spec.dtype));
        spec.latency_s = scales.time * link.latency_s;
        spec.row_s = scales.time * row_bytes / link.bandwidth;
        spec.width = scales.of(spec.width);
    }
    const graph::SectionGraph& graph = scenario_.graph;
    for (int s = 0; s < static_cast<int>(small.stages.size()); ++s) {
        workload::StageMemory& stage = small.stages[s];
        const model::Role role = workload::role_of(scenario_, s);
        const auto element = static_cast<double>(size_of(role.compute));
        const auto batch = table.worst_micro_batch(scenario_.full_micro_batch(graph.stages[s].section));
        double scratch = 0;
        for (std::size_t e = 0; e < small.channels.size(); ++e) {
            const graph::StageEdge& edge = graph.stage_edges[e];
            if (edge.to != s) continue;
            const int from = graph.stages[edge.from].section;
            const std::int64_t rows =
                table.rows_of(batch, from) * (edge.within_section() ? table.units(from).unit() : 1);
            scratch += static_cast<double>(
                padded(static_cast<double>(rows) * element * static_cast<double>(small.channels[e].width)));
        }
        stage.footprint.saved = role.emits ? padded(static_cast<double>(stage.max_rows) * element *
                                                    static_cast<double>(scales.of(role.output_width)))
                                           : kAlignment;
        stage.footprint.scratch = padded(scratch) + kSign;
        const auto backend = backend::make_meta();
        const auto module = make_module(*backend, s, workload::meta_mesh_of(scenario_, s), comm::sleep_until);
        stage.footprint.parameters = module->parameters().bytes();
        stage.footprint.gradients = module->parameters().gradient_bytes();
        stage.footprint.optimizer = module->parameters().optimizer_states();
        stage.footprint.frozen_shard = module->parameters().frozen_shard_bytes();
        stage.footprint.sync_scratch = module->parameters().sync_scratch();
        stage.footprint.host = {};
    }
    return small;
}

std::unique_ptr<model::Module> Emulation::make_module(backend::Backend& backend, int stage,
                                                      parallel::Mesh mesh, Sleep sleep_until) const {
    parallel::Mesh meta_mesh = workload::meta_mesh_of(scenario_, stage, mesh.rank_in_stage());
    const model::ModelSpec spec = scenario_.models[scenario_.graph.stages[stage].section];
    const model::Role role = workload::role_of(scenario_, stage);
    Factors factors = [&cluster = *scenario_.cluster, spec, role, shape = mesh.shape(),
                       encoders = workload::encoders_of(scenario_, scenario_.graph.stages[stage].section)](
                          const model::Batch& batch) {
        if (cluster.corrections.empty()) return std::array<double, 2>{1, 1};
        const std::vector<std::int64_t> lengths = lengths_of(batch, model::Units(spec), encoders);
        return workload::task_factors(cluster, spec, role, workload::task_shape(lengths, shape)).phases;
    };
    return make_emulated_module(backend, spec, role, workload::rates_of(scenario_.cluster->device),
                                scales_of(settings_), std::move(sleep_until), std::move(factors),
                                std::move(mesh), std::move(meta_mesh));
}

workload::StepEnd Emulation::step_end(int stage) const {
    workload::StepEnd end = ends_[stage];
    for (workload::GroupTimes& group : end)
        for (double* seconds : {&group.sum_s, &group.after_sum_s, &group.update_s, &group.gather_s})
            *seconds *= settings_.time_scale;
    return end;
}

}  // namespace maestro::emulation
