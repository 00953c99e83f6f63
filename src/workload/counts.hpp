// Counts the work and traffic of a step, independent of any machine, by running the models' code on the meta
// backend.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "workload/probes.hpp"
#include "workload/sample_table.hpp"
#include "workload/scenario.hpp"

namespace maestro::workload {

/// The counts of one section over a step, summed over its ranks.
struct StepCounts {
    double flops = 0;         ///< forward and backward; a multiply-add counts as two
    double memory_bytes = 0;  ///< read and written by the operations, each tensor once
    double edge_bytes = 0;    ///< rows sent to other sections' ranks, and gradients sent back
    /// The same between the stages of the section, and the gradients of a tied embedding.
    double pp_bytes = 0;
    /// Traffic along tp and cp, as if all ranks did what the first of a lane does: the larger of the bytes
    /// that it sends and receives, with the all-reduce, once a step, of gradients replicated along tp.
    double tp_bytes = 0, cp_bytes = 0;
    /// The same to and from experts on other ranks, if all choices of the router are equally likely.
    double ep_bytes = 0;
    double dp_bytes = 0;  ///< sent to reduce-scatter gradients over the data axes and to all-gather weights
};

/// Returns the counts of a step with the samples `ids`, by section. The scenario's cluster does not matter.
std::vector<StepCounts> step_counts(const Scenario& scenario, const SampleTable& table, Probes& probes,
                                    std::span<const std::int64_t> ids);

}  // namespace maestro::workload
