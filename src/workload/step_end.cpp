#include "workload/step_end.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.hpp"
#include "ops/adamw.hpp"
#include "workload/costs.hpp"
#include "workload/layout.hpp"
#include "workload/models.hpp"
#include "workload/probes.hpp"
#include "workload/sample_table.hpp"

namespace maestro::workload {

namespace {

/// Returns the seconds of what the groups of the mesh have sent since the last call.
double sent_s(const parallel::Mesh& mesh) {
    double seconds = 0;
    const auto add = [&](parallel::Axes axes) {
        seconds += mesh.group(axes).traffic().seconds;
        mesh.group(axes).reset_traffic();
    };
    for (const parallel::Axis axis : parallel::kReplicaAxes) add(axis);
    add(parallel::kDataAxes);
    // Where both groups are one, its counts are 0 by now.
    if (mesh.shape().has_experts) add(parallel::kExpertDataAxes);
    return seconds;
}

/// Returns ranks along kDataAxes of which one ends last: the first of all, whose shard is the longest, and
/// the first on a node of each size, because what a rank exchanges for its node depends on how many share
/// that.
std::vector<int> representatives(const Probe& probe) {
    std::vector<int> ranks{0};
    const collective::Nodes nodes(probe.links.data_nodes);
    std::set<std::size_t> sizes;
    for (int node = 0; node < nodes.count(); ++node)
        if (sizes.insert(nodes.on(node).size()).second && nodes.on(node).front() != 0)
            ranks.push_back(nodes.on(node).front());
    return ranks;
}

/// Whether what is done with two groups of a stage takes the same time: their parameters differ only in name.
bool are_alike(const parallel::ParameterGroup& a, const parallel::ParameterGroup& b) {
    using parallel::Parameter;
    const auto same_copies = [](const Parameter::Replicated& x, const Parameter::Replicated& y) {
        return x.elements.begin == y.elements.begin && x.elements.end == y.elements.end && x.axes == y.axes;
    };
    return std::equal(a.parameters().begin(), a.parameters().end(), b.parameters().begin(),
                      b.parameters().end(), [&](const Parameter* x, const Parameter* y) {
                          return x->size() == y->size() && x->offset == y->offset && x->type == y->type &&
                                 x->data_axes == y->data_axes &&
                                 std::equal(x->replicated.begin(), x->replicated.end(), y->replicated.begin(),
                                            y->replicated.end(), same_copies);
                      });
}

}  // namespace

StepEnd measure_step_end(const model::ModelSpec& spec, const model::Role& role, parallel::Mesh mesh,
                         const backend::DeviceRates& rates) {
    const auto meta = backend::make_meta(rates);
    const auto module = model::make_module(*meta, spec, role, std::move(mesh), model::InitialWeights::zeros);
    StepEnd end;
    if (module->parameters().trainable() == 0) return end;  // its mesh has no group over the data axes
    const auto seconds = [&] {
        const double total = meta->counts().seconds + sent_s(module->mesh());
        meta->reset_counts();
        return total;
    };
    backend::Arena scratch;
    seconds();  // discards what making the module has counted
    std::vector<std::pair<const parallel::ParameterGroup*, std::size_t>> measured;  // and which of `end`
    for (parallel::ParameterGroup& group : module->parameters().groups()) {
        if (!group.trainable()) continue;
        const auto like = std::find_if(measured.begin(), measured.end(),
                                       [&](const auto& other) { return are_alike(*other.first, group); });
        if (like != measured.end()) {
            const GroupTimes times = end[like->second];
            end.push_back(times);
            continue;
        }
        measured.emplace_back(&group, end.size());
        GroupTimes& times = end.emplace_back();
        const Tensor shard = group.gradient().slice(group.shard().begin, group.shard().end);
        group.reduce_gradients(scratch);
        times.sum_s = seconds();
        ops::add_squares(*meta, shard, Tensor(nullptr, DType::f64, {1}), scratch);
        group.zero_gradient({0, group.shard().begin});
        group.zero_gradient({group.shard().end, group.size()});
        times.after_sum_s = seconds();
        times.tied = group.replicated(parallel::Axis::tied) > 0;
        // The meta backend reads no values, so that one tensor can stand for weights and moments too.
        ops::adamw(*meta, shard, shard, shard, shard, {}, {});
        group.zero_gradient(group.shard());
        times.update_s = seconds();
        group.gather_weights();
        times.gather_s = seconds();
    }
    return end;
}

std::vector<StepEnd> step_ends(const Scenario& scenario, Probes& probes) {
    std::vector<StepEnd> ends;
    for (int stage = 0; stage < static_cast<int>(scenario.graph.stages.size()); ++stage)
        ends.push_back(step_end_of(scenario, stage, probes));
    return ends;
}

StepEnd step_end_of(const Scenario& scenario, int stage, Probes& probes) {
    MAESTRO_CHECK(scenario.cluster, "the end of a step takes seconds of a cluster");
    Probe probe{.spec = scenario.models[scenario.graph.stages[stage].section],
                .role = role_of(scenario, stage),
                .shape = mesh_shape_of(scenario, stage),
                .links = mesh_links_of(scenario, stage)};
    probe.options.rates = rates_of(scenario.cluster->device);
    StepEnd end;
    for (const int data_rank : representatives(probe)) {
        probe.rank = data_rank * probe.shape.degrees.tp;
        const StepEnd& of_rank = probes.step_end(probe);
        end.resize(of_rank.size());
        for (std::size_t g = 0; g < end.size(); ++g) {
            end[g].tied = of_rank[g].tied;
            end[g].sum_s = std::max(end[g].sum_s, of_rank[g].sum_s);
            end[g].after_sum_s = std::max(end[g].after_sum_s, of_rank[g].after_sum_s);
            end[g].update_s = std::max(end[g].update_s, of_rank[g].update_s);
            end[g].gather_s = std::max(end[g].gather_s, of_rank[g].gather_s);
        }
    }
    return end;
}

void add_syncs(const std::vector<StepEnd>& ends, schedule::Problem& problem) {
    for (std::size_t stage = 0; stage < ends.size(); ++stage)
        for (const GroupTimes& group : ends[stage]) {
            problem.stages[stage].sum_s += group.sum_s;
            problem.stages[stage].gather_s += group.gather_s;
        }
}

void place_groups(StepEnd& end, const Scenario& scenario, int stage, const SampleTable& table,
                  std::span<const std::int64_t> samples, Probes& probes) {
    const int section = scenario.graph.stages[stage].section;
    std::vector<std::int64_t> active;
    for (const std::int64_t sample : samples)
        if (table.activates(sample, section)) active.push_back(sample);
    if (end.empty() || active.empty()) return;
    const auto medium = active.begin() + static_cast<std::ptrdiff_t>(active.size() / 2);
    std::nth_element(active.begin(), medium, active.end(), [&](std::int64_t a, std::int64_t b) {
        return table.length(a, section) < table.length(b, section);
    });
    Probe probe{.spec = scenario.models[section],
                .role = role_of(scenario, stage),
                .shape = mesh_shape_of(scenario, stage),
                .links = mesh_links_of(scenario, stage)};
    probe.options.rates = rates_of(scenario.cluster->device);
    // Where an item stands in a text hardly matters: its rows count as text.
    probe.add(table.units(section).encodes()
                  ? table.shape(*medium)
                  : model::SampleShape{.tokens = table.length(*medium, section), .items = {}});
    const model::Footprint footprint = probes.footprint(probe);
    for (std::size_t g = 0; g < end.size(); ++g) {
        end[g].final_at = footprint.backward_s > 0 ? footprint.final_s(g) / footprint.backward_s : 1;
        end[g].needed_at = footprint.forward_s > 0 ? footprint.needed_s(g) / footprint.forward_s : 0;
    }
}

}  // namespace maestro::workload
