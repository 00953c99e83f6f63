// What the stages of a section take and need with a choice, by the model's code.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "plan/balance.hpp"
#include "workload/layer_costs.hpp"
#include "workload/layout.hpp"

namespace maestro::plan {

/// What a rank of a stage takes and needs, whatever dp is.
struct StageTimes {
    std::vector<double> seconds;  ///< of each sample of all steps, forward and backward
    double fixed_bytes = 0;       ///< weights and gradients, without masters
    double shared_elements = 0;  ///< trainable ones, of which ranks along dp and cp share masters and moments
    double groups = 0;           ///< of parameters, whose gradients are summed together
    double saved_bytes = 0;      ///< of as many micro-batches of the longest samples as must be in flight
    double window_bytes = 0;     ///< of one such micro-batch
    double least_windows = 1;    ///< how many must be in flight
    double scratch_bytes = 0;    ///< of such a micro-batch, in the whole section
};

/// The bytes of the master copy of a weight, in the precision of its updates, where the model computes in
/// another.
double master_bytes(const Subject& subject);

/// The times of the stages of a section, by its choices. Choices of one shape (all but dp, pp, chunks and
/// layers of recomputation) should follow each other: what is measured of a shape is kept until the next.
class SectionWork {
public:
    /// Everything must outlive the object.
    SectionWork(const Subject& subject, int section, Balance& balance);

    /// Returns them for each stage of the choice. Empty where the choice does not fit.
    std::vector<StageTimes> of(const Choice& choice);

    /// The mesh of one stage of the last choice, with as few replicas as it may have.
    parallel::MeshShape mesh() const;

private:
    /// The section as one stage.
    struct Measured {
        workload::Scenario scenario;
        model::Footprint longest;  ///< of a micro-batch of the longest samples
        std::optional<workload::LayerCosts> costs = {};
    };

    std::size_t index() const { return static_cast<std::size_t>(section_); }
    std::unique_ptr<Measured> measure(const Choice& shape);
    workload::Probe probe_of(const workload::Scenario& scenario, model::Role role) const;
    void add(const Measured& measured, const graph::Layout& layout, Range layers, std::size_t stage,
             StageTimes& times);
    /// Stages of the same layers, first or last or neither, have the same parameters.
    StageTimes parameters_of(const Measured& measured, Range layers, std::size_t stage, std::size_t count);

    const Subject& subject_;
    int section_;
    Balance& balance_;
    std::vector<std::int64_t> samples_;  ///< of all steps
    std::optional<workload::SampleWeights> weights_;
    Choice shape_ = {.layout = {.dp = 0}};
    /// Of this shape: with its recomputation in all layers, and without any.
    std::unique_ptr<Measured> recomputed_, kept_;
    std::map<std::vector<int>, StageTimes> parameters_;
    std::map<std::tuple<int, int, int>, int> least_windows_;  ///< by pp, chunks and stage
};

}  // namespace maestro::plan
