// What corrections of a cluster file change for the tasks of a step, and of which of its shapes they are.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "workload/cost_model.hpp"
#include "workload/sample_table.hpp"
#include "workload/scenario.hpp"

namespace maestro::workload {

/// A sequence of a section, as a sample by itself.
struct Sequence {
    std::int64_t rows = 0;
    model::SampleShape sample = {};
};
/// Returns the sequences that a sample has in a section: the items that an encoder reads, or its tokens.
std::vector<Sequence> sequences_of(const SampleTable& table, int section, std::int64_t id);

struct CorrectedWork {
    double predicted_s = 0, corrected_s = 0;
    double measured_share = 0;  ///< part of the predicted time in tasks of shapes that were measured
};
/// Returns what the tasks of these samples take without and with the corrections of the scenario's cluster.
CorrectedWork corrected_work(const Scenario& scenario, const SampleTable& table, Probes& probes,
                             std::span<const std::int64_t> samples);

}  // namespace maestro::workload
