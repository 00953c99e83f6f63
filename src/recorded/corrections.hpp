// What the tasks of a run took, as corrections of a cluster file's predictions.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "config/cluster.hpp"
#include "config/deck.hpp"
#include "io/metrics_file.hpp"
#include "workload/probes.hpp"
#include "workload/sample_table.hpp"
#include "workload/scenario.hpp"

namespace maestro::recorded {

/// A run that `--measured` names, by the deck that it was last started with.
struct Run {
    std::string path;  ///< its directory
    config::Deck deck;
    workload::Scenario scenario;  ///< of the deck
};

/// Returns one correction for each section, stage and class of lengths that the tasks of these steps had:
/// measured over predicted seconds, a ratio of sums. The sequences of a class have lengths within an octave;
/// those of a micro-batch share its time in proportion to what is computed for them. What ranks of a
/// replica send to each other is not corrected, so its predicted time is taken from both sums first.
///
/// `scenario` is the run's with its markers, on a cluster, whose own corrections do not count; `table` has
/// the run's samples. `run` is named in errors: Error(bad_data) where a task is not one of that scenario.
std::vector<config::Correction> corrections_of(const std::string& run, workload::Scenario scenario,
                                               const workload::SampleTable& table, workload::Probes& probes,
                                               const io::Rows& rows, const std::set<std::int64_t>& steps);

/// Adds to the cluster of a deck's scenario what a run tells of those of its sections that have, in the deck,
/// the same model in the same number format, whatever number of layers. Logs what was measured, and why the
/// sections that do not count do not. The first steps after a start are left out, and of many the last count.
/// Error(input_missing) where there is no such run or its samples are gone, Error(bad_data) for a run that
/// measures nothing: an emulated one, one on another kind of device, one without recorded tasks, or one
/// without a section that counts.
void add_corrections(workload::Scenario& scenario, const config::Deck& deck, const Run& run);

}  // namespace maestro::recorded
