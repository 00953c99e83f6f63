// The measured over the predicted time of tasks on machines of which a cluster file knows some
// (`[[correction]]`, written by `maestro calibrate --deck`), or a run (--measured).
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "config/cluster.hpp"
#include "model/module.hpp"

namespace maestro::workload {

/// The class of shapes to which a task belongs.
struct TaskShape {
    double rows = 1;    ///< of the micro-batch, in a replica
    double length = 1;  ///< of its sequences: the mean over its rows
    std::int64_t tp = 1, cp = 1;
    std::int64_t ep = 1;  ///< ranks that share the experts of a layer
};
TaskShape task_shape(std::span<const std::int64_t> lengths, const parallel::MeshShape& mesh);

struct TaskFactors {
    std::array<double, 2> phases = {1, 1};  ///< forward and backward
    /// Whether tasks of this layout, and of half to twice the rows and the length, were measured.
    bool measured = false;
};
/// Returns the factors of a stage's tasks: those that were measured of this section, with a model of this
/// width and in this number format, at the nearest shape by the sum of |log(ratio)| of all its numbers; of a
/// layout and shape that a run had, those of the run. The parts of the stage count by their predicted times,
/// and of a run those stages that had layers at the same depths. Without any measurement the factors are 1.
TaskFactors task_factors(const config::Cluster& cluster, const model::ModelSpec& spec,
                         const model::Role& role, const TaskShape& shape);

}  // namespace maestro::workload
