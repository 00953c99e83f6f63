// device = "emulated": the real program, its plans, messages and waits, on a cluster that is not there. A
// task takes the time that the model's own code needs by the cluster file; rows and gradients of a scaled
// size really move, and are seen when the cluster's links would have brought them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "config/deck.hpp"
#include "model/module.hpp"
#include "workload/cost_model.hpp"
#include "workload/memory.hpp"
#include "workload/sample_table.hpp"
#include "workload/scenario.hpp"
#include "workload/step_end.hpp"

namespace maestro::emulation {

/// Loss of `step`, counted from 1, of every emulated run: falls from 4 towards 1.
double emulated_loss(std::int64_t step);

class Emulation {
public:
    /// `scenario` has a cluster, which is emulated. It and `settings` must outlive the emulation.
    /// `timeout_s`: how long a rank may make no progress.
    Emulation(const workload::Scenario& scenario, const config::Emulated& settings, double timeout_s);

    std::string describe() const;  ///< one line for the log
    /// Windows as the emulated device's memory allows. Throws Error(device_memory, all_ranks) where a rank
    /// needs more than that has.
    void fit(workload::MemoryPlan& plan) const;
    /// Throws Error(bad_deck, all_ranks) where a task would sleep longer than a rank may be silent.
    void check_times(const workload::CostModel& costs, std::int64_t samples) const;
    /// What this program takes for such a plan: rows of scaled width, hardly any weights.
    workload::MemoryPlan scaled(const workload::MemoryPlan& plan, const workload::SampleTable& table) const;
    /// A section that takes the time of its model, and of the end of its steps. Its parameters are one array
    /// of zeros, of scaled size.
    std::unique_ptr<model::Module> make_module(backend::Backend& backend, int section,
                                               parallel::Mesh mesh) const;

private:
    const workload::Scenario& scenario_;
    const config::Emulated& settings_;
    double timeout_s_;
    std::vector<workload::StepEnd> ends_;
};

}  // namespace maestro::emulation
