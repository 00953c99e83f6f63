// What the layers of a section take and keep, from which the costs of every stage follow that may have some
// of them. A planner that asks for many pipelines runs the models' code once for all of them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <vector>

#include "base/shard.hpp"
#include "workload/probes.hpp"
#include "workload/sample_table.hpp"
#include "workload/scenario.hpp"

namespace maestro::workload {

/// The lengths of the sequences of some samples in a section, and how the costs of its samples follow from
/// those at a few lengths.
class SampleWeights {
public:
    /// `grid`: lengths, ascending, at which costs are known (StageProbe::grid()).
    SampleWeights(const SampleTable& table, int section, std::span<const std::int64_t> samples,
                  std::vector<double> grid);
    const std::set<double>& asked() const { return asked_; }
    std::size_t samples() const { return samples_; }
    /// Adds, for each sample, its cost to `costs`: `each` is the cost per row at each length of the grid,
    /// `items` what a row of an item costs besides, by encoder.
    void add(const std::vector<double>& each, const std::vector<double>& items,
             std::vector<double>& costs) const;

private:
    struct Weight {
        std::size_t sample = 0, at = 0;  ///< of the grid
        double before = 0, after = 0;    ///< rows by the cost at the length before it, and at it
    };
    std::set<double> asked_;
    std::size_t samples_ = 0;
    std::vector<Weight> weights_;
    std::vector<std::vector<double>> item_rows_;  ///< [encoder][sample]
};

class LayerCosts {
public:
    /// Of a section that has one stage in the scenario, on these links. `weights` are of its samples. All
    /// must outlive the costs.
    LayerCosts(const Scenario& scenario, int section, const parallel::MeshLinks& links,
               const SampleTable& table, Probes& probes, const SampleWeights& weights);

    /// Adds, for each sample of the weights, the seconds of its forward and backward in a stage, which is the
    /// `index`-th of `count` and has these layers. No stage takes less; a stage whose host or device waits
    /// for the other at its beginning may take more.
    void add_seconds(Range layers, int index, int count, std::vector<double>& seconds) const;
    /// Returns the bytes that these layers keep of a micro-batch of the longest samples, without rows that a
    /// stage receives or sends. `longest`: a footprint of it in the whole section.
    double saved(const model::Footprint& longest, Range layers) const;

private:
    /// The seconds until a pass comes to a layer: of what is computed, and of what is sent.
    struct Until {
        double computed_s = 0, sent_s = 0;
    };
    /// Of a micro-batch of equal samples, by layer, with the end of the pass.
    struct Passes {
        std::vector<Until> forward;   ///< until it begins a layer
        std::vector<Until> backward;  ///< until it has finished a layer; the last: 0
        double samples = 1, length = 1;
    };
    Passes passes_of(const model::Footprint& footprint, double samples, double length) const;
    /// Seconds of a sample of the micro-batch in a stage.
    double seconds_of(const Passes& passes, Range layers, int index, int count) const;
    std::size_t mark_of(int layer) const;

    const Scenario& scenario_;
    int section_;
    const SampleWeights& weights_;
    parallel::MeshShape mesh_;
    std::vector<bool> needed_;     ///< by length of the grid
    std::vector<Passes> lengths_;  ///< the same; of those that are needed
    std::vector<Passes> items_;    ///< by encoder
    std::vector<double> grid_;
    double item_rows_ = 0;                ///< see StageProbe
    std::array<double, 2> mixing_{1, 1};  ///< mixing_factors() of the section
};

}  // namespace maestro::workload
