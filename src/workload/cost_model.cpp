#include "workload/cost_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <set>

#include "workload/costs.hpp"
#include "workload/layout.hpp"
#include "workload/mixing.hpp"
#include "workload/models.hpp"
#include "workload/stage_probe.hpp"

namespace maestro::workload {

Transfer transfer_of(const Scenario& scenario, int stage, const SampleTable& table) {
    const graph::SectionGraph& graph = scenario.graph;
    const model::Role role = role_of(scenario, stage);
    Transfer transfer;
    if (!scenario.cluster || role.computes_loss()) return transfer;
    transfer.row_bytes = static_cast<double>(role.output_width) * static_cast<double>(size_of(role.compute));
    if (!role.stage.last()) transfer.unit = table.units(graph.stages[stage].section).unit();
    // The ranks of a lane send at the same time; the end with more ranks bounds the rows of one rank.
    int at_once = std::numeric_limits<int>::max();
    for (const graph::StageEdge& e : graph.stage_edges)
        if (e.from == stage)
            at_once = std::min(
                at_once, std::max(graph.section_of(stage).lane_ranks(), graph.section_of(e.to).lane_ranks()));
    transfer.parallel = at_once;
    transfer.bandwidth = link_from(graph, *scenario.cluster, stage).bandwidth;
    return transfer;
}

CostModel::CostModel(const Scenario& scenario, const SampleTable& table, Probes& probes)
    : CostModel(scenario, table, probes, Scope()) {}

CostModel::CostModel(const Scenario& scenario, const SampleTable& table, Probes& probes, const Scope& scope)
    : table_(&table) {
    const graph::SectionGraph& graph = scenario.graph;
    std::array<double, 2> mixing{1, 1};  // of the present section
    for (int stage = 0; stage < static_cast<int>(graph.stages.size()); ++stage) {
        const int s = graph.stages[stage].section;
        if (scope.section && s != *scope.section) continue;
        const graph::Section& section = graph.sections[s];
        Stage& costs = stages_.emplace_back();
        costs.stage = stage;
        costs.section = s;
        costs.backward = section.backward;
        std::set<double> asked;
        for (const std::int64_t id : scope.samples)
            table.for_each_sequence(id, s, [&](double n) { asked.insert(n); });
        // A section without work for any of these samples costs nothing, whatever is measured.
        if (!scope.samples.empty() && asked.empty()) asked.insert(1);
        const parallel::MeshLinks links = scope.links ? scope.links(stage) : mesh_links_of(scenario, stage);
        costs.cost = StageProbe(scenario, s, stage, links, table.lengths(s), probes).run(asked);
        if (scope.mixing && graph.stages[stage].index == 0)
            mixing = mixing_factors(scenario, s, table, probes);
        costs.cost.scale(mixing);
        if (scope.transfers) costs.transfer = transfer_of(scenario, stage, table);
    }
}

SampleSeconds seconds_of(const LengthCost& cost, const SampleTable& table, int section, std::int64_t sample) {
    SampleSeconds seconds;
    table.for_each_sequence(sample, section, [&](double n) {
        seconds.forward_s += cost.at(cost.forward, n);
        seconds.backward_s += cost.at(cost.backward, n);
        seconds.common_s += cost.at(cost.common, n);
    });
    const std::span<const model::Units> encoders = table.encoders(section);
    for (std::size_t e = 0; e < encoders.size(); ++e) {
        const auto rows = static_cast<double>(encoders[e].outputs(table.items(sample)));
        seconds.forward_s += rows * cost.items[e].forward;
        seconds.backward_s += rows * cost.items[e].backward;
    }
    return seconds;
}

schedule::SampleCost CostModel::of(std::int64_t sample) const {
    schedule::SampleCost cost;
    cost.id = sample;
    for (const Stage& costs : stages_) {
        schedule::TaskCost task;
        const SampleSeconds seconds = seconds_of(costs.cost, *table_, costs.section, sample);
        task.active = table_->activates(sample, costs.section);
        task.forward_s = seconds.forward_s;
        task.backward_s = seconds.backward_s;
        const double task_s = task.forward_s + task.backward_s;
        if (seconds.common_s > 0) task.common = std::min(1.0, seconds.common_s / task_s);
        if (!costs.backward) task.backward_s = 0;
        if (costs.transfer.bandwidth > 0)
            task.transfer_s = costs.transfer.seconds(table_->output_rows(sample, costs.section));
        cost.stages.push_back(task);
    }
    return cost;
}

schedule::TaskCost CostModel::lacking(int stage) const {
    const auto at = std::find_if(stages_.begin(), stages_.end(),
                                 [&](const Stage& costs) { return costs.stage == stage; });
    return {.forward_s = at->cost.lacking_forward,
            .backward_s = at->backward ? at->cost.lacking_backward : 0,
            .active = true};
}

void CostModel::set_lacking(schedule::Problem& problem) const {
    for (const Stage& costs : stages_)
        problem.stages[static_cast<std::size_t>(costs.stage)].set_lacking(lacking(costs.stage));
}

std::vector<schedule::SampleCost> sample_costs(const Scenario& scenario, const SampleTable& table,
                                               Probes& probes) {
    const CostModel model(scenario, table, probes);
    std::vector<schedule::SampleCost> costs;
    costs.reserve(static_cast<std::size_t>(table.size()));
    table.for_each([&](std::int64_t i) { costs.push_back(model.of(i)); });
    return costs;
}

std::string describe_load(const graph::SectionGraph& graph, const CostModel& costs,
                          const SampleTable& table) {
    std::vector<double> loads(graph.sections.size(), 0.0);
    table.for_each([&](std::int64_t i) {
        const schedule::SampleCost cost = costs.of(i);
        for (std::size_t s = 0; s < cost.stages.size(); ++s) {
            const int section = graph.stages[s].section;
            loads[section] += (cost.stages[s].forward_s + cost.stages[s].backward_s) /
                              (graph.sections[section].layout.dp * graph.sections[section].layout.pp);
        }
    });
    const double largest = std::max(*std::max_element(loads.begin(), loads.end()), 1e-300);
    std::string text;
    for (std::size_t s = 0; s < loads.size(); ++s)
        text += fmt::format("{}{} {:.0f}%{}", s == 0 ? "" : ", ", graph.sections[s].name,
                            100 * loads[s] / largest,
                            loads[s] == largest ? " (critical: it bounds the time of a step)" : "");
    return "work per rank relative to the section with most, as the cost model predicts it: " + text;
}

}  // namespace maestro::workload
