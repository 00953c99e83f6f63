// device = "emulated": the real program with its plans, messages and waits, on an emulated cluster. A task
// takes the time that the cost model predicts from a cluster file. Rows and gradients of a scaled size really
// are sent, and become visible when the links of the cluster would have delivered them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "config/deck.hpp"
#include "emulation/emulated_module.hpp"
#include "model/module.hpp"
#include "workload/cost_model.hpp"
#include "workload/memory.hpp"
#include "workload/sample_table.hpp"
#include "workload/scenario.hpp"
#include "workload/step_end.hpp"

namespace maestro::emulation {

/// The loss of `step`, counted from 1, in every emulated run: it falls from 4 towards 1.
double emulated_loss(std::int64_t step);

class Emulation {
public:
    /// `scenario` has a cluster, which is emulated. It and `settings` must outlive the emulation.
    /// `timeout_s`: how long a rank may make no progress.
    Emulation(const workload::Scenario& scenario, const config::Emulated& settings, double timeout_s);

    std::string describe() const;  ///< one line for the log
    /// Returns what the ranks need on emulated devices, with the windows that their memory allows. Throws
    /// Error(device_memory, all_ranks) if one needs more than it has; `advice` says what to do.
    workload::MemoryPlan plan_memory(const workload::SampleTable& table, workload::Probes& probes,
                                     const config::Deck& deck, const std::string& advice) const;
    /// Throws Error(bad_deck, all_ranks) if a task would sleep longer than a rank may make no progress.
    void check_times(const workload::CostModel& costs, const workload::SampleTable& table) const;
    /// The memory that this program uses for such a plan: rows of scaled width, hardly any weights.
    workload::MemoryPlan scaled(const workload::MemoryPlan& plan, const workload::SampleTable& table) const;
    /// Makes a stage whose tasks sleep for the predicted time. Its parameters are zeros of scaled size.
    std::unique_ptr<model::Module> make_module(backend::Backend& backend, int stage, parallel::Mesh mesh,
                                               Sleep sleep_until) const;
    /// The times of parameter groups by stage, in seconds of the emulated cluster.
    const std::vector<workload::StepEnd>& step_ends() const { return ends_; }
    /// Returns the times of the stage's parameter groups, in seconds of this run.
    workload::StepEnd step_end(int stage) const;

private:
    const workload::Scenario& scenario_;
    const config::Emulated& settings_;
    double timeout_s_;
    std::vector<workload::StepEnd> ends_;
};

}  // namespace maestro::emulation
