// Runs of the models' own code on the meta backend, each made once. A planner keeps one `Probes` over many
// scenarios: one that differs from the last in the layout of a section runs the code of that section alone.
// Of a stage with many layers only a few are run, as many as it has kinds of them: what a layer takes and
// keeps is added for each of the others.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/module.hpp"
#include "parallel/mesh.hpp"
#include "workload/step_end.hpp"

namespace maestro::workload {

/// Output rows per side of an item by which an encoder, or what it feeds, is measured.
inline constexpr int kProbedSide = 16;

/// Everything that a run depends on, and the name of the section, which Probes leaves out. It compares all
/// else, so that a new field of these structs cannot be forgotten.
struct Probe {
    model::ModelSpec spec = {};
    model::Role role = {};
    parallel::MeshShape shape = {};
    parallel::MeshLinks links = {};
    int rank = 0;  ///< within the section's first replica
    model::MeasureOptions options = {};
    /// The micro-batch: samples of the same shape that follow each other, and how many they are.
    std::vector<std::pair<model::SampleShape, int>> samples = {};

    void add(const model::SampleShape& sample, int count = 1);
    bool operator==(const Probe&) const = default;
};

/// Not thread-safe. Results stay valid as long as the Probes do.
class Probes {
public:
    /// What the micro-batch takes on this rank: as model::measure() tells, up to the rounding of seconds.
    model::Footprint footprint(const Probe& probe);
    /// What follows from the parameters alone, whatever the micro-batch is: bytes of weights, gradients and
    /// shards, and the layers of groups.
    const model::Footprint& parameters(Probe probe);
    /// What the end of a step takes on this rank. A probe without samples.
    const StepEnd& step_end(Probe probe);
    /// How often model code has run so far, that is, how many different probes there were.
    std::int64_t runs() const {
        return static_cast<std::int64_t>(tasks_.size() + parameters_.size() + step_ends_.size());
    }

private:
    struct Hash {
        std::size_t operator()(const Probe& probe) const;
    };
    using Footprints = std::unordered_map<Probe, model::Footprint, Hash>;
    const model::Footprint& tasks_of(Probe probe);

    Footprints tasks_;       ///< of stages with few layers, whatever replicas there are
    Footprints parameters_;  ///< without samples
    std::unordered_map<Probe, StepEnd, Hash> step_ends_;
};

}  // namespace maestro::workload
