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
#include "workload/probes.hpp"
#include "workload/sample_table.hpp"
#include "workload/scenario.hpp"

namespace maestro::workload {

/// The cost per token or patch at some lengths, interpolated linearly between them. That is exact for costs
/// that are polynomials of degree two in the length.
struct LengthCost {
    std::vector<double> lengths, forward, backward;
    /// Added for each row of an item, by the encoder that reads it (SampleTable::encoders).
    struct OfItem {
        double forward = 0, backward = 0;
    };
    std::vector<OfItem> items;
    std::vector<double> common;  ///< of forward and backward together, see schedule::TaskCost::common
    /// The cost of n tokens; `each` is `forward`, `backward` or `common`.
    double at(const std::vector<double>& each, double n) const {
        const std::size_t k = after(n);
        if (k == 0) return n * each.front();
        const double share = (n - lengths[k - 1]) / (lengths[k] - lengths[k - 1]);
        return n * (each[k - 1] + share * (each[k] - each[k - 1]));
    }
    /// Returns the length at the end of the interval in which n is interpolated, as an index; 0: there is
    /// none before it.
    std::size_t after(double n) const {
        if (lengths.size() == 1 || n <= lengths.front()) return 0;
        std::size_t k = 1;
        while (k + 1 < lengths.size() && lengths[k] < n) ++k;
        return k;
    }
};

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
    };
    CostModel(const Scenario& scenario, const SampleTable& table, Probes& probes, const Scope& scope);
    /// May be called by any thread.
    schedule::SampleCost of(std::int64_t sample) const;

private:
    struct Stage {
        int section = 0;
        LengthCost cost;
        bool backward = true;
        Transfer transfer;
    };
    template <class Each>
    void lengths_of(std::int64_t sample, const Stage& stage, const Each& each) const;

    const SampleTable* table_;
    std::vector<Stage> stages_;
};

/// Returns how many samples of this length are as long as a usual micro-batch: one of them, and as many as
/// the others are long on average, up to a limit.
double probed_samples(std::int64_t micro_batch, const SampleTable::Lengths& lengths, double length);

/// The costs of every sample of the table, indexed by its id.
std::vector<schedule::SampleCost> sample_costs(const Scenario& scenario, const SampleTable& table,
                                               Probes& probes);
/// A line for the log: the work per rank of each section over the samples of the file, relative to the
/// section with the most.
std::string describe_load(const graph::SectionGraph& graph, const CostModel& costs, const SampleTable& table);

}  // namespace maestro::workload
