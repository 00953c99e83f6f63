// What a step asks of the machines, before any machine is known: by the model's own code on the meta backend.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "config/deck.hpp"
#include "workload/sample_table.hpp"

namespace maestro::workload {

/// Of one section over a step, all ranks together.
struct StepCounts {
    double flops = 0;         ///< forward and backward; a multiply-add counts two
    double memory_bytes = 0;  ///< read and written by the operations, each tensor once
    double edge_bytes = 0;    ///< rows sent on to other ranks, and gradients sent back by them
    double tp_bytes = 0;      ///< sent among the tp ranks of its replicas, and
    double cp_bytes = 0;      ///< among the cp ranks, during tasks
    double ring_bytes = 0;    ///< sent by all ranks to sum gradients and to gather weights
};

/// Of the samples `ids`, by colour.
std::vector<StepCounts> step_counts(const config::Deck& deck, std::int32_t marker, const SampleTable& table,
                                    std::span<const std::int64_t> ids);

}  // namespace maestro::workload
