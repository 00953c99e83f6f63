// Runs a stage's code over micro-batches of equal samples, at a few lengths: what the costs of samples of any
// length are interpolated from.
#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "workload/length_cost.hpp"
#include "workload/probes.hpp"
#include "workload/sample_table.hpp"
#include "workload/scenario.hpp"

namespace maestro::workload {

class StageProbe {
public:
    /// `section`: that of the stage; `lengths`: of its sequences in the file. All must outlive the probe.
    StageProbe(const Scenario& scenario, int section, int stage, const parallel::MeshLinks& links,
               const SampleTable::Lengths& lengths, Probes& probes);
    /// Of a stage with this role on a mesh of this shape, but for dp.
    StageProbe(const Scenario& scenario, int section, model::Role role, const parallel::MeshShape& mesh,
               const parallel::MeshLinks& links, const SampleTable::Lengths& lengths, Probes& probes);

    /// Returns the lengths at which the stage may be measured, and which of them the costs of samples of the
    /// lengths `asked` need; of any samples where these are none.
    std::vector<double> grid() const;
    std::vector<bool> needed(const std::vector<double>& grid, const std::set<double>& asked) const;
    /// Returns what the stage takes for samples of the lengths `asked`, of any length where these are none.
    LengthCost run(const std::set<double>& asked) const;
    /// Returns the same without the corrections of the cluster.
    LengthCost predicted(const std::set<double>& asked) const;
    /// Returns the probe of the stage without samples.
    const Probe& empty() const { return probe_; }

    /// What a micro-batch of equal samples takes and keeps.
    struct Batch {
        model::Footprint footprint;
        double samples = 1;
        double length = 1;  ///< of each, in rows
    };
    /// Returns that of samples of the i-th length of grid(), as the rates of the device predict it, without
    /// the corrections of the cluster.
    Batch at(std::size_t i) const;
    /// Returns that of texts with an item of the e-th encoder that feeds the section, whose rows are half of
    /// theirs.
    Batch with_item(std::size_t e) const;
    /// Returns the rows of such an item.
    double item_rows() const { return static_cast<double>(side_) * side_; }
    std::size_t encoders() const { return encoders_.size(); }
    const parallel::MeshShape& mesh() const { return probe_.shape; }

private:
    struct Seconds {
        double forward, backward;
        double sum() const { return forward + backward; }
    };
    double usual(double length) const;
    Batch batch_of(const model::SampleShape& shape, double length, double count, bool half,
                   bool corrected) const;
    Seconds measure(const model::SampleShape& shape, double length, double count, bool half = false) const;
    double common_of(const model::SampleShape& shape, double length, const Seconds& seconds) const;
    std::pair<model::SampleShape, std::int64_t> shape_of(int i) const;
    model::SampleShape shape_with_item(std::size_t e) const;
    void add(LengthCost& cost, int i, bool measured) const;
    void add_item_rows(LengthCost& cost, std::size_t e) const;
    void add_lacking(LengthCost& cost) const;

    Probe probe_;  ///< without samples
    model::Units units_;
    std::vector<model::Units> encoders_;
    bool common_ = false;    ///< all parts of a lane share experts
    bool timed_;             ///< by the rates of a device; otherwise FLOPs are counted
    bool corrected_ = true;  ///< run() counts the corrections of the cluster
    Probes& probes_;
    const config::Cluster* cluster_ = nullptr;  ///< null: not timed
    SampleTable::Lengths lengths_;
    int side_;  ///< output rows per side of an item that is measured within a text
    double longest_;
    std::int64_t micro_batch_;  ///< samples
};

/// Returns how many samples of this length are as long as a usual micro-batch: one of them, and as many as
/// the others are long on average, up to a limit.
double probed_samples(std::int64_t micro_batch, const SampleTable::Lengths& lengths, double length);

}  // namespace maestro::workload
