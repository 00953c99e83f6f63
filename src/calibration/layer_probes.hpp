// Parts of a deck's models, run on a real device: single layers, and what stands before and after them,
// in the shapes that they have on a rank of the deck's layouts.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.hpp"
#include "comm/communicator.hpp"
#include "config/cluster.hpp"
#include "model/module.hpp"
#include "workload/sample_table.hpp"
#include "workload/scenario.hpp"

namespace maestro::calibration {

/// A stage of a model that runs a micro-batch on one rank of a mesh, again and again. The other ranks of the
/// mesh do not exist: their rows are copies of this rank's (parallel::make_loopback_mesh).
class PartRun {
public:
    /// Draws the weights, the samples' data and the inputs at random. `expert_nodes` as in
    /// parallel::MeshLinks. The backend outlives it. Throws Error(device_memory).
    PartRun(backend::Backend& backend, const model::ModelSpec& spec, const model::Role& role,
            const parallel::MeshShape& shape, const std::vector<int>& expert_nodes,
            std::span<const model::SampleShape> samples);
    ~PartRun();
    PartRun(const PartRun&) = delete;
    PartRun& operator=(const PartRun&) = delete;

    struct Pass {
        double seconds = 0;  ///< without the copies that stand for messages, where the host makes them
        double flops = 0;
    };
    struct Passes {
        Pass forward, backward;  ///< backward: 0 where the role needs none
    };
    /// Runs both passes and waits for the device.
    Passes run();

private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

/// Collective. All ranks measure at the same time, because they share the machine when they train; a time is
/// the lower quartile over passes, and the median of that over ranks. For each section of the scenario, which
/// has a cluster: every kind of layer and both ends of its model, in the deck's layout, in micro-batches of
/// sequences of up to three lengths, above which are 90%, 50% and 10% of the rows of these samples.
std::vector<config::Correction> measure_layers(const comm::Communicator& world, backend::Backend& backend,
                                               const workload::Scenario& scenario,
                                               const workload::SampleTable& table,
                                               std::span<const std::int64_t> samples);

}  // namespace maestro::calibration
