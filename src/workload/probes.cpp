#include "workload/probes.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "workload/layout.hpp"

namespace maestro::workload {

namespace {

parallel::Mesh mesh_of(const Probe& probe) {
    return parallel::make_meta_mesh(probe.rank, probe.shape, probe.links);
}

/// A probe of a stage with fewer layers: the first and the last of each kind. A unit is a layer of the
/// parameter store: a layer of the stage, or what an encoder adds after one (DeepStack), which is always run.
struct FewLayers {
    Probe probe;
    /// By unit of the whole stage: which of the units that are run it is, -1 for none; and which of them is
    /// the first of its kind.
    std::vector<int> run = {};
    std::vector<std::size_t> like = {};
    std::size_t units_run = 0;
};

/// Returns after how many layers the first stage of a section adds rows of its inputs.
int layers_with_inputs(const model::Role& role) {
    std::size_t most = 0;
    for (const model::InputSpec& input : role.inputs)
        if (input.tensor == EdgeTensor::embeddings) most = std::max(most, input.from.deepstack.size());
    return static_cast<int>(most);
}

/// Returns it, unless layers cannot be distinguished by their kinds.
std::optional<FewLayers> few_layers(const Probe& probe) {
    const model::ModelSpec& spec = probe.spec;
    const model::Stage& stage = probe.role.stage;
    if (!probe.role.frozen.empty()) return {};
    const int layers = stage.layers > 0 ? stage.layers : spec.layers - stage.first_layer;
    const int with_inputs = layers_with_inputs(probe.role);
    const auto recomputes = [&](int l) {
        return probe.role.recompute_layers == 0 || l < probe.role.recompute_layers;
    };
    const auto branches = [&](int l) {
        return std::find(spec.deepstack.begin(), spec.deepstack.end(), stage.first_layer + l) !=
               spec.deepstack.end();
    };
    struct Ends {
        int first, last;
    };
    std::map<std::tuple<int, bool, bool, int>, Ends> kinds;
    const auto kind_of = [&](int l) {
        const int layer = stage.first_layer + l;
        // A layer after which something is added has no other like it.
        const int alone = l < with_inputs || branches(l) ? l : -1;
        return std::tuple(spec.mixer_index(layer), spec.experts.in_layer(layer), recomputes(l), alone);
    };
    for (int l = 0; l < layers; ++l) kinds.try_emplace(kind_of(l), Ends{l, l}).first->second.last = l;
    FewLayers few{.probe = probe};
    few.probe.spec.deepstack.clear();
    std::vector<int> mixers;
    int dense = 0, recomputed = 0;
    std::map<int, std::size_t> first_unit;  // by the first layer of a kind
    const auto add_unit = [&](std::size_t like, bool run) {
        few.like.push_back(like);
        few.run.push_back(run ? static_cast<int>(few.units_run++) : -1);
    };
    for (int l = 0; l < layers; ++l) {
        const Ends& ends = kinds.at(kind_of(l));
        if (l == ends.first) first_unit[l] = few.units_run;
        const bool run = l == ends.first || l == ends.last;
        add_unit(first_unit.at(ends.first), run);
        if (!run) continue;
        if (branches(l)) {
            few.probe.spec.deepstack.push_back(static_cast<int>(mixers.size()));
            add_unit(few.units_run, true);
        }
        mixers.push_back(spec.mixer_index(stage.first_layer + l));
        dense += spec.experts.in_layer(stage.first_layer + l) ? 0 : 1;
        recomputed += recomputes(l) ? 1 : 0;
    }
    // A stage between the first and the last one is like any other with such layers.
    model::Stage& run = few.probe.role.stage;
    run.count = 1 + (stage.first() ? 0 : 1) + (stage.last() ? 0 : 1);
    run.index = stage.first() ? 0 : 1;
    few.probe.spec.layers = static_cast<int>(mixers.size());
    if (!spec.mixer_of_layer.empty()) few.probe.spec.mixer_of_layer = mixers;
    if (spec.experts.count > 0) few.probe.spec.experts.dense_layers = dense;
    run.first_layer = 0;
    run.layers = static_cast<int>(mixers.size());
    if (probe.role.recompute_layers > 0) few.probe.role.recompute_layers = recomputed;
    return few;
}

using Mark = model::Footprint::Mark;

void add(collective::Traffic& to, const collective::Traffic& more) {
    to.messages += more.messages;
    to.bytes += more.bytes;
    to.seconds += more.seconds;
}
/// Adds what lies between two marks.
void add(Mark& to, const Mark& from, const Mark& until) {
    to.until_wait_s += until.until_wait_s - from.until_wait_s;
    to.device_s += until.device_s - from.device_s;
    to.host_s += until.host_s - from.host_s;
    to.sent_s += until.sent_s - from.sent_s;
    to.flops += until.flops - from.flops;
    to.saved += until.saved - from.saved;
    for (std::size_t axis = 0; axis < to.sent.size(); ++axis)
        add(to.sent[axis], {until.sent[axis].messages - from.sent[axis].messages,
                            until.sent[axis].bytes - from.sent[axis].bytes,
                            until.sent[axis].seconds - from.sent[axis].seconds});
}

/// Returns the marks of a pass over all units, from those of the units that were run. Unit u is layer u + 1
/// of the store. `backward`: from the last layer to the first. `end`, what the pass has used in all, becomes
/// that of the whole stage.
std::vector<Mark> marks_of_all(const FewLayers& few, const std::vector<Mark>& run, bool backward, Mark& end) {
    const std::size_t layers = few.like.size(), others = run.size() - few.units_run;
    std::vector<Mark> all(layers + others);
    // Adds what a layer takes. The mark of a forward stands before it, that of a backward behind it. The
    // first of a kind has another layer behind it, or its kind has but one.
    const auto add_layer = [&](Mark& to, std::size_t layer) {
        const std::size_t i = few.like[layer] + 1;
        if (backward)
            add(to, run[i + 1], run[i]);
        else
            add(to, run[i], run[i + 1]);
    };
    Mark added;  // for layers that were not run and have been passed
    const auto copy = [&](std::size_t of_all, std::size_t of_run) {
        all[of_all] = run[of_run];
        add(all[of_all], Mark(), added);
    };
    if (backward)
        for (std::size_t other = 1; other < others; ++other)
            copy(layers + other, run.size() - others + other);
    for (std::size_t k = 0; k < layers; ++k) {
        const std::size_t l = backward ? layers - 1 - k : k;
        if (few.run[l] >= 0) {
            copy(l + 1, static_cast<std::size_t>(few.run[l]) + 1);
            continue;
        }
        // Neither the first nor the last layer.
        all[l + 1] = backward ? all[l + 2] : all[l];
        add_layer(all[l + 1], backward ? l : l - 1);
        add_layer(added, l);
    }
    if (!backward)
        for (std::size_t other = 1; other < others; ++other)
            copy(layers + other, run.size() - others + other);
    add(end, Mark(), added);
    return all;
}

/// Returns the footprint of the tasks of a stage from that of few of its layers.
model::Footprint of_all_layers(const Probe& whole, const FewLayers& few, model::Footprint footprint) {
    const Mark forward = footprint.forward_end;
    footprint.forward_marks = marks_of_all(few, footprint.forward_marks, false, footprint.forward_end);
    footprint.forward_s = footprint.forward_end.seconds();
    footprint.forward_flops = footprint.forward_end.flops;
    footprint.saved += footprint.forward_end.saved - forward.saved;
    Mark total = footprint.forward_end;  // of what both passes have sent
    if (footprint.backward_end.passed) {
        footprint.backward_marks = marks_of_all(few, footprint.backward_marks, true, footprint.backward_end);
        footprint.backward_s = footprint.backward_end.seconds();
        footprint.backward_flops = footprint.backward_end.flops;
        total = footprint.backward_end;
        add(total, forward, footprint.forward_end);
    } else {
        footprint.backward_marks.resize(footprint.forward_marks.size());
    }
    footprint.tp = total.sent[0];
    footprint.cp = total.sent[1];
    footprint.ep = total.sent[2];
    // Layers with experts, which all keep the same on the host.
    const auto keep_choices = [](const Probe& probe, std::size_t layers) {
        std::size_t count = 0;
        for (int l = 0; l < static_cast<int>(layers); ++l)
            if (probe.spec.experts.in_layer(probe.role.stage.first_layer + l) &&
                (probe.role.recompute != Recompute::layer ||
                 (probe.role.recompute_layers > 0 && l >= probe.role.recompute_layers)))
                ++count;
        return count;
    };
    const auto run = static_cast<std::size_t>(few.probe.role.stage.layers);
    if (const std::size_t keep = keep_choices(few.probe, run); keep > 0)
        footprint.host.saved = footprint.host.saved / keep * keep_choices(whole, few.like.size());
    return footprint;
}

/// Whether the passes came to every layer that was run.
bool passed_all(const FewLayers& few, const model::Footprint& footprint) {
    const auto passed = [&](const std::vector<Mark>& marks) {
        for (std::size_t l = 0; l < few.units_run; ++l)
            if (l + 1 >= marks.size() || !marks[l + 1].passed) return false;
        return true;
    };
    return passed(footprint.forward_marks) &&
           (!footprint.backward_end.passed || passed(footprint.backward_marks));
}

}  // namespace

void Probe::add(const model::SampleShape& sample, int count) {
    if (!samples.empty() && samples.back().first == sample)
        samples.back().second += count;
    else
        samples.emplace_back(sample, count);
}

model::Footprint Probes::footprint(const Probe& probe) {
    model::Footprint footprint;
    std::optional<FewLayers> few = few_layers(probe);
    if (few) {
        const model::Footprint& tasks = tasks_of(few->probe);
        if (passed_all(*few, tasks))
            footprint = of_all_layers(probe, *few, tasks);
        else
            few.reset();
    }
    if (!few) footprint = tasks_of(probe);
    const model::Footprint& of_parameters = parameters(probe);
    footprint.parameters = of_parameters.parameters;
    footprint.gradients = of_parameters.gradients;
    footprint.optimizer = of_parameters.optimizer;
    footprint.frozen_shard = of_parameters.frozen_shard;
    footprint.sync_scratch = of_parameters.sync_scratch;
    footprint.group_layers = of_parameters.group_layers;
    return footprint;
}

const model::Footprint& Probes::tasks_of(Probe probe) {
    probe.role.section.clear();
    probe.shape = task_mesh(probe.shape);
    probe.links = task_links(std::move(probe.links));
    const auto at = tasks_.find(probe);
    if (at != tasks_.end()) return at->second;
    std::vector<model::SampleShape> samples;
    for (const auto& [sample, count] : probe.samples)
        samples.insert(samples.end(), static_cast<std::size_t>(count), sample);
    return tasks_
        .emplace(probe, model::measure(probe.spec, probe.role, samples, probe.options, mesh_of(probe)))
        .first->second;
}

const model::Footprint& Probes::parameters(Probe probe) {
    probe.samples.clear();
    probe.role.section.clear();
    probe.role.recompute = Recompute::none;
    probe.role.recompute_layers = 0;
    probe.options = {.traits = probe.options.traits};
    probe.links = {.tp = {},
                   .cp = {},
                   .data = {},
                   .data_nodes = probe.links.data_nodes,
                   .expert_nodes = probe.links.expert_nodes,
                   .expert_data_nodes = probe.links.expert_data_nodes};
    const auto at = parameters_.find(probe);
    if (at != parameters_.end()) return at->second;
    model::Footprint footprint;
    model::measure_parameters(probe.spec, probe.role, probe.options.traits, mesh_of(probe), footprint);
    return parameters_.emplace(std::move(probe), std::move(footprint)).first->second;
}

const StepEnd& Probes::step_end(Probe probe) {
    probe.role.section.clear();
    const auto at = step_ends_.find(probe);
    if (at != step_ends_.end()) return at->second;
    return step_ends_
        .emplace(probe, measure_step_end(probe.spec, probe.role, mesh_of(probe), probe.options.rates))
        .first->second;
}

/// Hashes the fields in which the probes of a planner usually differ, mixed as by boost::hash_combine.
/// Equality compares all fields.
std::size_t Probes::Hash::operator()(const Probe& probe) const {
    std::size_t hash = std::hash<int>{}(probe.spec.width);
    const auto mix = [&](auto value) {
        hash ^= std::hash<decltype(value)>{}(value) + 0x9e3779b97f4a7c15 + (hash << 6) + (hash >> 2);
    };
    mix(probe.shape.dp);
    mix(probe.shape.degrees.tp);
    mix(probe.shape.degrees.cp);
    mix(static_cast<int>(probe.shape.context_kind));
    mix(probe.shape.experts.ep);
    mix(probe.shape.experts.etp);
    mix(static_cast<int>(probe.role.recompute));
    mix(probe.role.recompute_layers);
    mix(probe.role.stage.index);
    mix(probe.role.stage.count);
    mix(probe.role.stage.first_layer);
    mix(probe.role.stage.layers);
    mix(probe.spec.layers);
    mix(probe.role.trained);
    mix(probe.role.inputs.size());
    mix(probe.rank);
    mix(probe.links.tp.bandwidth);
    mix(probe.options.rates.element_flops);
    mix(probe.options.rates.bytes);
    for (const auto& [sample, count] : probe.samples) {
        mix(count);
        mix(sample.tokens);
        for (const Item& item : sample.items) {
            mix(item.height);
            mix(item.width);
        }
    }
    return hash;
}

}  // namespace maestro::workload
