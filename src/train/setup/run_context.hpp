// What a run knows before it builds any section: its ranks, its device and its deck.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "backend/device.hpp"
#include "base/error.hpp"
#include "base/pulse.hpp"
#include "comm/communicator.hpp"
#include "comm/topology.hpp"
#include "comm/watchdog.hpp"
#include "config/deck.hpp"
#include "workload/rank_device.hpp"
#include "workload/scenario.hpp"

namespace maestro::train {

/// What helps where a training run does not fit into memory, for error messages.
inline constexpr const char* kTrainingNeedsLess =
    "use a smaller window or micro_batch, train.recompute = \"cheap\" or \"layer\", more ranks for a section "
    "(layout.tp for weights and activations, layout.cp for activations, layout.dp for the optimizer's "
    "moments), or fewer ranks a node";

/// What it refers to belongs to the caller.
struct RunContext {
    const comm::Communicator& world;
    comm::Watchdog& watchdog;
    Pulse& pulse;  ///< signals that this rank is at work on files
    comm::Topology topology;
    backend::Device device = {};
    config::Deck deck;
    workload::Scenario scenario = {};  ///< of the deck on the run's nodes; Preflight adds what samples say
    /// The devices of the other machine that a dry run plans for, instead of `device`.
    std::optional<workload::RankDevice> planned_device = {};
    bool train = true;       ///< false: an evaluation of the validation samples
    std::int64_t shown = 0;  ///< of an evaluation: samples for which answers are decoded
    std::string memory_advice = kTrainingNeedsLess;  ///< what to do where memory is too small
    /// Reports an error that this rank has alone, and ends the job.
    std::function<void(const Error& error)> end_job = {};
};

}  // namespace maestro::train
