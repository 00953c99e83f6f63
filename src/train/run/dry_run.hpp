// What a dry run tells: ranks, memory by section, checkpoints and, where the machines' rates are known,
// times. For this machine, or for another one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/command_line.hpp"
#include "train/setup/preflight.hpp"
#include "train/setup/run_context.hpp"

namespace maestro::train {

/// The files of a run on its disk.
struct DiskNeed {
    std::vector<std::uint64_t> sections;  ///< bytes of a checkpoint by section
    std::uint64_t checkpoint = 0;         ///< bytes of a whole checkpoint
    std::int64_t at_once = 0;             ///< checkpoints that exist at the same time in a run without stops
    std::int64_t most = 0;                ///< the same with early stops, each of which writes one
    std::uint64_t bytes() const { return checkpoint * static_cast<std::uint64_t>(at_once); }
};
/// Returns what the checkpoints of the deck need. Nothing is allocated for their weights.
DiskNeed disk_need_of(const config::Deck& deck, const workload::Scenario& scenario, Pulse& pulse);

/// Returns the devices that `train --dry-run` plans for with --cluster or --memory, nothing without them, and
/// lays the sections of `scenario` on their nodes. `cluster`: text of the file. Error(bad_deck).
std::optional<workload::RankDevice> planned_device_of(const config::CommandLine& line,
                                                      const config::Deck& deck, const std::string& cluster,
                                                      workload::Scenario& scenario);

/// Collective, after the preflight of a dry run. Prints what it has found on rank 0, with --json an object as
/// the last line. `notes`: on rank 0, further ones. Throws Error(device_memory, all_ranks) where the planned
/// devices have too little memory.
void report_dry_run(const RunContext& context, const Preflight& preflight, const config::CommandLine& line,
                    const std::vector<std::string>& notes);

}  // namespace maestro::train
