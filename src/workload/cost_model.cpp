#include "workload/cost_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>

#include "workload/costs.hpp"
#include "workload/layout.hpp"
#include "workload/models.hpp"
#include "workload/task_factors.hpp"

namespace maestro::workload {

namespace {

constexpr double kMaxProbedSamples = 256;  ///< samples of a micro-batch
constexpr int kProbedText = 256;           ///< tokens of the text with a probed item
constexpr double kProbedItem = kProbedSide * kProbedSide;
constexpr double kWhole = kProbedText + kProbedItem;
constexpr double kNominalRate = 1e11;  ///< FLOP/s; only ratios matter to a plan

/// 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, ...: four values per octave.
int quarter_octave(int i) {
    return i < 3 ? i + 1 : (4 + (i + 1) % 4) << ((i + 1) / 4 - 1);
}

/// Measures a stage over micro-batches of equal samples, at a few lengths.
class StageProbe {
public:
    /// `section`: that of the stage.
    StageProbe(const Scenario& scenario, int section, int stage, const parallel::MeshLinks& links,
               const SampleTable::Lengths& lengths, Probes& probes)
        : probe_{.spec = scenario.models[section],
                 .role = role_of(scenario, stage),
                 .shape = task_mesh(mesh_shape_of(scenario, stage)),
                 .links = task_links(links)},
          units_(probe_.spec),
          encoders_(encoders_of(scenario, section)),
          timed_(scenario.cluster.has_value()),
          probes_(probes),
          longest_(std::max(lengths.longest, encoders_.empty() ? 0.0 : kProbedText + kProbedItem)),
          lengths_(lengths),
          micro_batch_(scenario.graph.sections[section].micro_batch) {
        if (timed_) {
            cluster_ = &*scenario.cluster;
            probe_.options.rates = rates_of(cluster_->device);
        }
        // Where groups of the parts of a lane share experts, each group by itself, costs know of no common
        // work.
        common_ = probe_.shape.dp > 1 && probe_.shape.dp == scenario.graph.sections[section].lane_replicas;
    }

    /// `asked`: the lengths for which the cost is asked; empty: any.
    LengthCost run(const std::set<double>& asked) const {
        LengthCost cost;
        // FLOPs are polynomials of degree two without a constant, which two lengths determine. Times are not:
        // they are measured until the longest sequence is covered.
        for (int i = 0; i < 2 || (timed_ && cost.lengths.back() < longest_); ++i)
            cost.lengths.push_back(static_cast<double>(shape_of(i).second));
        std::vector<bool> measured(cost.lengths.size(), asked.empty());
        const auto mark = [&](double n) {
            const std::size_t k = cost.after(n);
            measured[k] = true;
            if (k > 0) measured[k - 1] = true;
        };
        for (const double n : asked) mark(n);
        if (!encoders_.empty()) mark(kWhole);
        for (std::size_t i = 0; i < cost.lengths.size(); ++i) add(cost, static_cast<int>(i), measured[i]);
        for (const model::Units& encoder : encoders_) add_item_rows(cost, encoder);
        return cost;
    }

private:
    struct Seconds {
        double forward, backward;
        double sum() const { return forward + backward; }
    };
    /// Returns the cost of one sample of this shape. FLOPs are polynomials in its length. Times are not,
    /// because rates depend on shapes and every operation has a fixed cost; so the sample is measured within
    /// a micro-batch of the usual size, filled with samples of the same length. The other replicas that
    /// share experts have as many rows or, if `half`, half of them.
    Seconds measure(const model::SampleShape& shape, double length, bool half = false) const {
        const double count = timed_ ? probed_samples(micro_batch_, lengths_, length) : 1;
        Probe probe = probe_;
        probe.add(shape, static_cast<int>(count));
        if (timed_ && !cluster_->corrections.empty()) {
            const std::vector<std::int64_t> sequences(static_cast<std::size_t>(count),
                                                      static_cast<std::int64_t>(length));
            probe.options.factors =
                task_factors(*cluster_, probe.spec, probe.role, task_shape(sequences, probe.shape)).phases;
        }
        if (half) {
            PackedSequences packed;
            packed.lengths.assign(static_cast<std::size_t>(count), shape.tokens);
            std::vector<std::int64_t>& rows = probe.options.lane_rows;
            rows = rows_of_ranks(packed, probe.shape.degrees);
            const std::size_t ranks = rows.size();
            for (std::size_t rank = ranks; rank < static_cast<std::size_t>(probe.shape.ranks()); ++rank)
                rows.push_back(rows[rank % ranks] / 2);
        }
        const model::Footprint f = probes_.footprint(probe);
        if (timed_) return {f.forward_s / count, f.backward_s / count};
        return {f.forward_flops / kNominalRate / count, f.backward_flops / kNominalRate / count};
    }
    /// Returns the seconds of a sample for which all replicas that share experts work in common: twice what a
    /// replica saves if the others have samples of half the length.
    double common_of(const model::SampleShape& shape, double length, const Seconds& seconds) const {
        if (!common_) return 0;
        const double others = (probe_.shape.dp - 1.0) / probe_.shape.dp;
        const double saved = seconds.sum() - measure(shape, length, true).sum();
        return std::max(0.0, 2 * saved / others);
    }

    /// Returns the i-th sample that is measured, and its length.
    std::pair<model::SampleShape, std::int64_t> shape_of(int i) const {
        // Two lengths per octave for either kind: the length of an item is the square of its side.
        if (units_.encodes()) {
            const Item item = units_.probe(timed_ ? quarter_octave(i) : (i == 0 ? 2 : 6));
            return {{.tokens = 1, .items = {item}, .weight = 1}, units_.rows(item)};
        }
        const std::int64_t length = timed_ ? 4 * quarter_octave(2 * i) : (i == 0 ? 32 : 256);
        return {{.tokens = length, .items = {}, .weight = 1}, length};
    }

    /// Appends the costs of the i-th length, or NaN where it is not to be measured.
    void add(LengthCost& cost, int i, bool measured) const {
        if (!measured) {
            for (std::vector<double>* each : {&cost.forward, &cost.backward, &cost.common})
                each->push_back(std::numeric_limits<double>::quiet_NaN());
            return;
        }
        const model::SampleShape shape = shape_of(i).first;
        const double length = cost.lengths[static_cast<std::size_t>(i)];
        const Seconds seconds = measure(shape, length);
        cost.forward.push_back(seconds.forward / length);
        cost.backward.push_back(seconds.backward / length);
        cost.common.push_back(common_of(shape, length, seconds) / length);
    }

    /// Rows of an item cost less or more than others, because they are neither embedded nor predicted.
    void add_item_rows(LengthCost& cost, const model::Units& encoder) const {
        const Seconds seconds =
            measure({.tokens = kProbedText + 1, .items = {encoder.probe(kProbedSide)}, .weight = 1}, kWhole);
        cost.items.push_back({.forward = (seconds.forward - cost.at(cost.forward, kWhole)) / kProbedItem,
                              .backward = (seconds.backward - cost.at(cost.backward, kWhole)) / kProbedItem});
    }

    Probe probe_;  ///< without samples
    model::Units units_;
    std::vector<model::Units> encoders_;
    bool common_ = false;  ///< all parts of a lane share experts
    bool timed_;           ///< by the rates of a device; otherwise FLOPs are counted
    Probes& probes_;
    const config::Cluster* cluster_ = nullptr;  ///< null: not timed
    double longest_;
    SampleTable::Lengths lengths_;
    std::int64_t micro_batch_;  ///< samples
};

}  // namespace

double probed_samples(std::int64_t micro_batch, const SampleTable::Lengths& lengths, double length) {
    const double others = static_cast<double>(micro_batch - 1) * lengths.sum /
                          static_cast<double>(std::max<std::int64_t>(lengths.samples, 1));
    // The number is limited, because it decides how long a probe takes.
    return std::round(std::min(1 + others / length, kMaxProbedSamples));
}

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
    for (int stage = 0; stage < static_cast<int>(graph.stages.size()); ++stage) {
        const int s = graph.stages[stage].section;
        if (scope.section && s != *scope.section) continue;
        const graph::Section& section = graph.sections[s];
        Stage& costs = stages_.emplace_back();
        costs.section = s;
        costs.backward = section.backward;
        std::set<double> asked;
        for (const std::int64_t id : scope.samples) lengths_of(id, costs, [&](double n) { asked.insert(n); });
        // A section without work for any of these samples costs nothing, whatever is measured.
        if (!scope.samples.empty() && asked.empty()) asked.insert(1);
        const parallel::MeshLinks links = scope.links ? scope.links(stage) : mesh_links_of(scenario, stage);
        costs.cost = StageProbe(scenario, s, stage, links, table.lengths(s), probes).run(asked);
        if (scope.transfers) costs.transfer = transfer_of(scenario, stage, table);
    }
}

/// Calls each(length) for every sequence of the sample in the section: items that it reads, or its tokens.
template <class Each>
void CostModel::lengths_of(std::int64_t sample, const Stage& stage, const Each& each) const {
    const model::Units& units = table_->units(stage.section);
    if (!units.encodes()) return each(static_cast<double>(table_->length(sample, stage.section)));
    for (const Item& item : table_->items(sample))
        if (units.reads(item.kind)) each(static_cast<double>(units.rows(item)));
}

schedule::SampleCost CostModel::of(std::int64_t sample) const {
    schedule::SampleCost cost;
    cost.id = sample;
    for (const Stage& costs : stages_) {
        schedule::TaskCost task;
        double common_s = 0;
        task.active = table_->activates(sample, costs.section);
        lengths_of(sample, costs, [&](double n) {
            task.forward_s += costs.cost.at(costs.cost.forward, n);
            task.backward_s += costs.cost.at(costs.cost.backward, n);
            common_s += costs.cost.at(costs.cost.common, n);
        });
        const std::span<const model::Units> encoders = table_->encoders(costs.section);
        for (std::size_t e = 0; e < encoders.size(); ++e) {
            const auto rows = static_cast<double>(encoders[e].outputs(table_->items(sample)));
            task.forward_s += rows * costs.cost.items[e].forward;
            task.backward_s += rows * costs.cost.items[e].backward;
        }
        const double task_s = task.forward_s + task.backward_s;
        if (common_s > 0) task.common = std::min(1.0, common_s / task_s);
        if (!costs.backward) task.backward_s = 0;
        if (costs.transfer.bandwidth > 0)
            task.transfer_s = costs.transfer.seconds(table_->output_rows(sample, costs.section));
        cost.stages.push_back(task);
    }
    return cost;
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
