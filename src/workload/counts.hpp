// What a step asks of the machines, before any machine is known: by the model's own code on the meta backend.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "workload/probes.hpp"
#include "workload/sample_table.hpp"
#include "workload/scenario.hpp"

namespace maestro::workload {

/// Of one section over a step, all ranks together.
struct StepCounts {
    double flops = 0;         ///< forward and backward; a multiply-add counts two
    double memory_bytes = 0;  ///< read and written by the operations, each tensor once
    double edge_bytes = 0;    ///< rows sent on to other ranks, and gradients sent back by them
    /// Among tp and among cp ranks, as if all did what the first of a lane does: what it sends or what it
    /// gets, whichever is more; with the sums, once a step, of gradients that tp ranks share.
    double tp_bytes = 0, cp_bytes = 0;
    double dp_bytes = 0;  ///< sent by all ranks to sum gradients over dp x cp and to gather weights
};

/// Returns the counts of a step with the samples `ids`, by section. The scenario's cluster does not matter.
std::vector<StepCounts> step_counts(const Scenario& scenario, const SampleTable& table, Probes& probes,
                                    std::span<const std::int64_t> ids);

}  // namespace maestro::workload
