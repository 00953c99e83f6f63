#include "workload/stage_probe.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "workload/costs.hpp"
#include "workload/layout.hpp"
#include "workload/models.hpp"
#include "workload/task_factors.hpp"

namespace maestro::workload {

namespace {

constexpr double kMaxProbedSamples = 256;  ///< samples of a micro-batch
constexpr double kNominalRate = 1e11;      ///< FLOP/s; only ratios matter to a plan

/// Returns the side of an item that is half of a usual text, in output rows.
int usual_side(const SampleTable::Lengths& lengths) {
    constexpr double kMost = 64;
    const double rows = lengths.sum / static_cast<double>(std::max<std::int64_t>(lengths.samples, 1));
    return static_cast<int>(std::clamp(std::round(std::sqrt(rows / 2)), 1.0, kMost));
}

/// 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, ...: four values per octave.
int quarter_octave(int i) {
    return i < 3 ? i + 1 : (4 + (i + 1) % 4) << ((i + 1) / 4 - 1);
}

}  // namespace

StageProbe::StageProbe(const Scenario& scenario, int section, int stage, const parallel::MeshLinks& links,
                       const SampleTable::Lengths& lengths, Probes& probes)
    : StageProbe(scenario, section, role_of(scenario, stage), mesh_shape_of(scenario, stage), links, lengths,
                 probes) {}

StageProbe::StageProbe(const Scenario& scenario, int section, model::Role role,
                       const parallel::MeshShape& mesh, const parallel::MeshLinks& links,
                       const SampleTable::Lengths& lengths, Probes& probes)
    : probe_{.spec = scenario.models[section],
             .role = std::move(role),
             .shape = task_mesh(mesh),
             .links = task_links(links)},
      units_(probe_.spec),
      encoders_(encoders_of(scenario, section)),
      timed_(scenario.cluster.has_value()),
      probes_(probes),
      lengths_(lengths),
      side_(usual_side(lengths)),
      longest_(std::max(lengths.longest, encoders_.empty() ? 0.0 : 2 * item_rows())),
      micro_batch_(scenario.graph.sections[section].micro_batch) {
    if (timed_) {
        cluster_ = &*scenario.cluster;
        probe_.options.rates = rates_of(cluster_->device);
    }
    // Where groups of the parts of a lane share experts, each group by itself, costs know of no common work.
    common_ = probe_.shape.dp > 1 && probe_.shape.dp == scenario.graph.sections[section].lane_replicas;
}

std::vector<double> StageProbe::grid() const {
    // FLOPs are polynomials of degree two without a constant, which two lengths determine. Times are not:
    // they are measured until the longest sequence is covered.
    std::vector<double> lengths;
    for (int i = 0; i < 2 || (timed_ && lengths.back() < longest_); ++i)
        lengths.push_back(static_cast<double>(shape_of(i).second));
    return lengths;
}

std::vector<bool> StageProbe::needed(const std::vector<double>& grid, const std::set<double>& asked) const {
    std::vector<bool> needed(grid.size(), asked.empty());
    const LengthCost cost{.lengths = grid};
    const auto mark = [&](double n) {
        const std::size_t k = cost.after(n);
        needed[k] = true;
        if (k > 0) needed[k - 1] = true;
    };
    for (const double n : asked) mark(n);
    if (!encoders_.empty()) mark(2 * item_rows());
    return needed;
}

LengthCost StageProbe::predicted(const std::set<double>& asked) const {
    StageProbe uncorrected = *this;
    uncorrected.corrected_ = false;
    return uncorrected.run(asked);
}

LengthCost StageProbe::run(const std::set<double>& asked) const {
    LengthCost cost;
    cost.lengths = grid();
    const std::vector<bool> measured = needed(cost.lengths, asked);
    for (std::size_t i = 0; i < cost.lengths.size(); ++i) add(cost, static_cast<int>(i), measured[i]);
    for (std::size_t e = 0; e < encoders_.size(); ++e) add_item_rows(cost, e);
    add_lacking(cost);
    return cost;
}

StageProbe::Batch StageProbe::at(std::size_t i) const {
    const auto [shape, length] = shape_of(static_cast<int>(i));
    return batch_of(shape, static_cast<double>(length), usual(static_cast<double>(length)), false, false);
}

StageProbe::Batch StageProbe::with_item(std::size_t e) const {
    return batch_of(shape_with_item(e), 2 * item_rows(), usual(2 * item_rows()), false, false);
}

/// Returns how many samples of this length are measured together. FLOPs are polynomials in the length. Times
/// are not, because rates depend on shapes and every operation has a fixed cost; so a sample is measured
/// within a micro-batch of the usual size, filled with samples of the same length.
double StageProbe::usual(double length) const {
    return timed_ ? probed_samples(micro_batch_, lengths_, length) : 1;
}

/// Returns a micro-batch of `count` samples of this shape. The other replicas that share experts have as many
/// rows or, if `half`, half of them.
StageProbe::Batch StageProbe::batch_of(const model::SampleShape& shape, double length, double count,
                                       bool half, bool corrected) const {
    Probe probe = probe_;
    probe.add(shape, static_cast<int>(count));
    if (corrected && timed_ && !cluster_->corrections.empty()) {
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
    return {.footprint = probes_.footprint(probe), .samples = count, .length = length};
}

/// Returns the cost of one of `count` samples of this shape.
StageProbe::Seconds StageProbe::measure(const model::SampleShape& shape, double length, double count,
                                        bool half) const {
    const Batch batch = batch_of(shape, length, count, half, corrected_);
    const model::Footprint& f = batch.footprint;
    if (timed_) return {f.forward_s / batch.samples, f.backward_s / batch.samples};
    return {f.forward_flops / kNominalRate / batch.samples, f.backward_flops / kNominalRate / batch.samples};
}

/// Returns the seconds of a sample for which all replicas that share experts work in common: twice what a
/// replica saves if the others have samples of half the length.
double StageProbe::common_of(const model::SampleShape& shape, double length, const Seconds& seconds) const {
    if (!common_) return 0;
    const double others = (probe_.shape.dp - 1.0) / probe_.shape.dp;
    const double saved = seconds.sum() - measure(shape, length, usual(length), true).sum();
    return std::max(0.0, 2 * saved / others);
}

/// Returns the i-th sample that is measured, and its length.
std::pair<model::SampleShape, std::int64_t> StageProbe::shape_of(int i) const {
    // Two lengths per octave for either kind: the length of an item is the square of its side.
    if (units_.encodes()) {
        const Item item = units_.probe(timed_ ? quarter_octave(i) : (i == 0 ? 2 : 6));
        return {{.tokens = 1, .items = {item}, .weight = 1}, units_.rows(item)};
    }
    const std::int64_t length = timed_ ? 4 * quarter_octave(2 * i) : (i == 0 ? 32 : 256);
    return {{.tokens = length, .items = {}, .weight = 1}, length};
}

model::SampleShape StageProbe::shape_with_item(std::size_t e) const {
    // An item has a marker among the tokens.
    return {.tokens = side_ * side_ + 1, .items = {encoders_[e].probe(side_)}, .weight = 1};
}

/// Appends the costs of the i-th length, or NaN where it is not to be measured.
void StageProbe::add(LengthCost& cost, int i, bool measured) const {
    if (!measured) {
        for (std::vector<double>* each : {&cost.forward, &cost.backward, &cost.common})
            each->push_back(std::numeric_limits<double>::quiet_NaN());
        return;
    }
    const model::SampleShape shape = shape_of(i).first;
    const double length = cost.lengths[static_cast<std::size_t>(i)];
    const Seconds seconds = measure(shape, length, usual(length));
    cost.forward.push_back(seconds.forward / length);
    cost.backward.push_back(seconds.backward / length);
    cost.common.push_back(common_of(shape, length, seconds) / length);
}

/// Rows of an item cost less or more than others, because they are neither embedded nor predicted.
void StageProbe::add_item_rows(LengthCost& cost, std::size_t e) const {
    const double text = 2 * item_rows();
    const Seconds seconds = measure(shape_with_item(e), text, usual(text));
    cost.items.push_back({.forward = (seconds.forward - cost.at(cost.forward, text)) / item_rows(),
                          .backward = (seconds.backward - cost.at(cost.backward, text)) / item_rows()});
}

/// What a task takes whatever its samples are follows from a usual micro-batch and one of half as many
/// samples.
void StageProbe::add_lacking(LengthCost& cost) const {
    if (!timed_ || micro_batch_ == 1) return;
    const double mean = lengths_.sum / static_cast<double>(std::max<std::int64_t>(lengths_.samples, 1));
    std::optional<std::size_t> nearest;
    const auto distance = [&](std::size_t i) { return std::abs(std::log(cost.lengths[i] / mean)); };
    for (std::size_t i = 0; i < cost.lengths.size(); ++i)
        if (!std::isnan(cost.forward[i]) && usual(cost.lengths[i]) > 1 &&
            (!nearest || distance(i) < distance(*nearest)))
            nearest = i;
    if (!nearest) return;
    const double length = cost.lengths[*nearest], count = usual(length), fewer = std::floor(count / 2);
    const Seconds seconds = measure(shape_of(static_cast<int>(*nearest)).first, length, fewer);
    // A line through both: as many samples of this length as the batch has on average share the rest.
    const auto lacking = [&](double usual_s, double fewer_s) {
        const double fixed_s = (fewer_s - usual_s) * count * fewer / (count - fewer);
        return std::clamp(fixed_s, 0.0, usual_s * count) / static_cast<double>(micro_batch_);
    };
    cost.lacking_forward = lacking(cost.forward[*nearest] * length, seconds.forward);
    cost.lacking_backward = lacking(cost.backward[*nearest] * length, seconds.backward);
}

double probed_samples(std::int64_t micro_batch, const SampleTable::Lengths& lengths, double length) {
    const double others = static_cast<double>(micro_batch - 1) * lengths.sum /
                          static_cast<double>(std::max<std::int64_t>(lengths.samples, 1));
    // The number is limited, because it decides how long a probe takes.
    return std::round(std::min(1 + others / length, kMaxProbedSamples));
}

}  // namespace maestro::workload
