// The cost model: the models' code runs on the meta backend at a few lengths, and the rates of a device turn
// its work into seconds. The costs of a sample are interpolated when they are asked for, so that memory does
// not grow with the sample file.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/module.hpp"
#include "schedule/problem/problem.hpp"
#include "workload/length_cost.hpp"
#include "workload/probes.hpp"
#include "workload/sample_table.hpp"
#include "workload/scenario.hpp"

namespace maestro::workload {

/// The seconds for which rows that leave a stage pass over a link, without its latency.
struct Transfer {
    double row_bytes = 0, bandwidth = 0;  ///< of the link, bytes/s; 0: nothing is counted
    std::int64_t unit = 1;                ///< output rows of the stage for an output row of the section
    int parallel = 1;                     ///< ranks that send the rows of a sample at the same time
    /// `rows`: output rows of the section.
    double seconds(std::int64_t rows) const {
        return bandwidth > 0 ? static_cast<double>(rows * unit) * row_bytes / (bandwidth * parallel) : 0;
    }
};
/// Returns that of a stage on the scenario's cluster; nothing is counted without one, or where the stage
/// computes the loss.
Transfer transfer_of(const Scenario& scenario, int stage, const SampleTable& table);

/// What a stage takes for a sample, forward, backward, and of both what is common work (TaskCost::common).
struct SampleSeconds {
    double forward_s = 0, backward_s = 0, common_s = 0;
};
SampleSeconds seconds_of(const LengthCost& cost, const SampleTable& table, int section, std::int64_t sample);

class CostModel {
public:
    /// `table` must outlive the model; `probes` keeps what it measures. Costs are seconds of a sample's task
    /// in each stage on the first rank of a lane, communication within the lane included: on the device of
    /// the scenario's cluster, or, without one, at a nominal rate, where only ratios mean something.
    CostModel(const Scenario& scenario, const SampleTable& table, Probes& probes);
    /// What a model of some costs leaves out.
    struct Scope {
        /// Links within lanes in the place of the cluster's.
        std::function<parallel::MeshLinks(int stage)> links = {};
        std::optional<int> section = {};  ///< whose stages alone have costs
        bool transfers = true;            ///< false: rows that leave a stage take no time
        /// Those that are asked for: only their lengths are measured. Empty: all of the table.
        std::span<const std::int64_t> samples = {};
        bool mixing = true;  ///< false: without mixing_factors()
    };
    CostModel(const Scenario& scenario, const SampleTable& table, Probes& probes, const Scope& scope);
    /// May be called by any thread.
    schedule::SampleCost of(std::int64_t sample) const;
    /// Returns what a task of a stage takes for each sample that its micro-batch lacks.
    schedule::TaskCost lacking(int stage) const;
    /// Sets that in the stages of the scenario's problem.
    void set_lacking(schedule::Problem& problem) const;

private:
    struct Stage {
        int stage = 0, section = 0;
        LengthCost cost;
        bool backward = true;
        Transfer transfer;
    };
    const SampleTable* table_;
    std::vector<Stage> stages_;
};

/// The costs of every sample of the table, indexed by its id.
std::vector<schedule::SampleCost> sample_costs(const Scenario& scenario, const SampleTable& table,
                                               Probes& probes);
/// A line for the log: the work per rank of each section over the samples of the file, relative to the
/// section with the most.
std::string describe_load(const graph::SectionGraph& graph, const CostModel& costs, const SampleTable& table);

}  // namespace maestro::workload
