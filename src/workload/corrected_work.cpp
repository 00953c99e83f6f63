#include "workload/corrected_work.hpp"

#include "workload/layout.hpp"
#include "workload/models.hpp"
#include "workload/stage_probe.hpp"
#include "workload/task_factors.hpp"

namespace maestro::workload {

std::vector<Sequence> sequences_of(const SampleTable& table, int section, std::int64_t id) {
    const model::Units& units = table.units(section);
    std::vector<Sequence> sequences;
    if (!units.encodes()) {
        const std::int64_t rows = table.length(id, section);
        sequences.push_back({rows, {.tokens = rows, .items = {}, .weight = 1}});
    } else {
        for (const Item& item : table.items(id))
            if (units.reads(item.kind))
                sequences.push_back({units.rows(item), {.tokens = 1, .items = {item}, .weight = 1}});
    }
    return sequences;
}

CorrectedWork corrected_work(const Scenario& scenario, const SampleTable& table, Probes& probes,
                             std::span<const std::int64_t> samples) {
    Scenario uncorrected = scenario;
    uncorrected.cluster->corrections.clear();
    const CostModel before(uncorrected, table, probes, {.samples = samples}),
        after(scenario, table, probes, {.samples = samples});
    CorrectedWork work;
    double measured_s = 0;
    for (const std::int64_t id : samples) {
        const schedule::SampleCost predicted = before.of(id), corrected = after.of(id);
        for (std::size_t k = 0; k < predicted.stages.size(); ++k) {
            const int stage = static_cast<int>(k), section = scenario.graph.stages[stage].section;
            const double task_s = predicted.stages[k].forward_s + predicted.stages[k].backward_s;
            work.predicted_s += task_s;
            work.corrected_s += corrected.stages[k].forward_s + corrected.stages[k].backward_s;
            double rows = 0, of_measured = 0;
            for (const Sequence& sequence : sequences_of(table, section, id)) {
                const auto n = static_cast<double>(sequence.rows);
                const auto count = static_cast<std::size_t>(
                    probed_samples(scenario.graph.sections[section].micro_batch, table.lengths(section), n));
                const TaskShape shape =
                    task_shape(std::vector(count, sequence.rows), task_mesh(mesh_shape_of(scenario, stage)));
                const TaskFactors factors = task_factors(*scenario.cluster, scenario.models[section],
                                                         role_of(scenario, stage), shape);
                rows += n;
                if (factors.measured) of_measured += n;
            }
            if (rows > 0) measured_s += task_s * of_measured / rows;
        }
    }
    if (work.predicted_s > 0) work.measured_share = measured_s / work.predicted_s;
    return work;
}

}  // namespace maestro::workload
