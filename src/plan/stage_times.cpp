#include "plan/stage_times.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "ops/dispatch.hpp"
#include "workload/costs.hpp"
#include "workload/memory.hpp"
#include "workload/mixing.hpp"
#include "workload/models.hpp"
#include "workload/stage_probe.hpp"
#include "workload/stages.hpp"

namespace maestro::plan {

double master_bytes(const Subject& subject) {
    const DType compute = subject.scenario.compute, master = ops::accumulate_type(compute);
    return compute == master ? 0 : static_cast<double>(size_of(master));
}

SectionWork::SectionWork(const Subject& subject, int section, Balance& balance)
    : subject_(subject), section_(section), balance_(balance) {
    for (const std::vector<std::int64_t>& ids : subject.steps)
        samples_.insert(samples_.end(), ids.begin(), ids.end());
}

std::vector<StageTimes> SectionWork::of(const Choice& choice) {
    Choice shape = choice;
    shape.layout.dp =
        std::lcm(choice.layout.stage_ranks(), choice.layout.expert_ranks()) / choice.layout.stage_ranks();
    shape.layout.pp = shape.layout.chunks = 1;
    shape.layout.layers.clear();
    shape.layout.first_rank = -1;
    shape.recompute_layers = 0;
    if (!(shape == shape_)) {
        shape_ = shape;
        recomputed_ = measure(shape);
        kept_.reset();
    }
    if (!recomputed_) return {};
    // The first layers of each stage recompute, all of them by default.
    const bool some = choice.recompute_layers > 0 && choice.recompute != Recompute::none;
    if (some && !kept_) {
        shape.recompute = Recompute::none;
        kept_ = measure(shape);
    }
    std::vector<int> layers{subject_.scenario.models[index()].layers};
    if (choice.layout.stage_count() > 1) layers = balance_.layers_of(index(), choice);
    std::vector<StageTimes> stages;
    std::int64_t begin = 0;
    for (const int n : layers) {
        StageTimes& stage = stages.emplace_back(
            parameters_of(*recomputed_, {begin, begin + n}, stages.size(), layers.size()));
        stage.seconds.assign(samples_.size(), 0.0);
        const std::int64_t border = begin + (some ? std::min(n, choice.recompute_layers) : n);
        add(*recomputed_, choice.layout, {begin, border}, stages.size() - 1, stage);
        if (border < begin + n) add(*kept_, choice.layout, {border, begin + n}, stages.size() - 1, stage);
        begin += n;
    }
    return stages;
}

std::unique_ptr<SectionWork::Measured> SectionWork::measure(const Choice& shape) {
    std::vector<Choice> choices(subject_.scenario.graph.sections.size());
    choices[index()] = shape;
    workload::Scenario open = subject_.scenario;
    for (graph::Section& section : open.graph.sections) section.window = 0;
    std::vector<graph::Refusal> refusals;
    auto measured = std::make_unique<Measured>(Measured{
        .scenario = with_choices(std::move(open), choices, apart(choices.size()), refusals), .longest = {}});
    if (!refusals.empty()) return {};
    const workload::Scenario& scenario = measured->scenario;
    const int stage = scenario.graph.stage_of(section_, 0);
    if (!weights_)
        weights_.emplace(
            subject_.table, section_, samples_,
            workload::StageProbe(scenario, section_, stage, workload::best_links(scenario, stage),
                                 subject_.table.lengths(section_), subject_.probes)
                .grid());
    measured->costs.emplace(scenario, section_, workload::best_links(scenario, stage), subject_.table,
                            subject_.probes, *weights_);
    workload::Probe probe = probe_of(scenario, workload::role_of(scenario, stage));
    probe.options.worst_case = shape.layout.cp > 1;
    for (const model::SampleShape& sample :
         subject_.table.longest_micro_batch(scenario.full_micro_batch(section_), section_))
        probe.add(sample);
    measured->longest = subject_.probes.footprint(probe);
    return measured;
}

workload::Probe SectionWork::probe_of(const workload::Scenario& scenario, model::Role role) const {
    return {.spec = scenario.models[index()],
            .role = std::move(role),
            .shape = workload::mesh_shape_of(scenario, scenario.graph.stage_of(section_, 0)),
            .options = {.train = subject_.options.train, .traits = subject_.device.traits}};
}

void SectionWork::add(const Measured& measured, const graph::Layout& layout, Range layers, std::size_t stage,
                      StageTimes& times) {
    const auto count = static_cast<std::size_t>(layout.stage_count());
    measured.costs->add_seconds(layers, static_cast<int>(stage), static_cast<int>(count), times.seconds);
    // A stage of a pipeline keeps at least the micro-batches without which its loss section would stall.
    const auto [least, is_new] =
        least_windows_.try_emplace(std::tuple(layout.pp, layout.chunks, static_cast<int>(stage)), 1);
    if (is_new) {
        const workload::StageWindows windows =
            workload::windows_of(layout, subject_.scenario.graph.sections[index()].loss,
                                 static_cast<int>(stage), subject_.scenario.global_batch);
        if (windows.most > 0) least->second = std::max(1, windows.least);
    }
    times.least_windows = least->second;
    const double saved = measured.costs->saved(measured.longest, layers);
    times.window_bytes += saved;
    times.saved_bytes += times.least_windows * saved;
    times.scratch_bytes = static_cast<double>(measured.longest.scratch);
}

StageTimes SectionWork::parameters_of(const Measured& measured, Range layers, std::size_t stage,
                                      std::size_t count) {
    const model::ModelSpec& model = subject_.scenario.models[index()];
    const bool alike = subject_.scenario.tuning[index()].frozen.empty();
    const graph::Layout& l = measured.scenario.graph.sections[index()].layout;
    std::vector<int> key{l.tp, l.cp, l.ep, l.etp, stage == 0, stage + 1 == count};
    for (auto layer = static_cast<int>(layers.begin); layer < layers.end; ++layer)
        key.push_back(alike ? model.first_like(layer) : layer);
    const auto [known, is_new] = parameters_.try_emplace(std::move(key));
    if (!is_new) return known->second;
    const int k = static_cast<int>(stage), stages = static_cast<int>(count);
    workload::Probe probe =
        probe_of(measured.scenario, workload::role_of(measured.scenario, section_,
                                                      {.index = k,
                                                       .count = stages,
                                                       .first_layer = static_cast<int>(layers.begin),
                                                       .layers = static_cast<int>(layers.size())}));
    if (workload::is_tied(measured.scenario, section_, k, stages)) probe.shape.tied = {k == 0 ? 0 : 1, 2};
    const model::Footprint& footprint = subject_.probes.parameters(probe);
    known->second.fixed_bytes = static_cast<double>(footprint.parameters) -
                                master_bytes(subject_) * static_cast<double>(footprint.optimizer);
    known->second.shared_elements =
        static_cast<double>(footprint.gradients) /
        static_cast<double>(size_of(ops::accumulate_type(subject_.scenario.compute)));
    known->second.groups = static_cast<double>(footprint.group_layers.size());
    return known->second;
}

parallel::MeshShape SectionWork::mesh() const {
    const graph::SectionGraph& graph = recomputed_->scenario.graph;
    return workload::mesh_shape_of(recomputed_->scenario, graph.stage_of(section_, 0));
}

}  // namespace maestro::plan
