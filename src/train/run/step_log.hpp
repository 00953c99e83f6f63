// The line that a run prints every so many steps.
#pragma once

#include <cstdint>

#include "config/deck.hpp"
#include "io/metrics_file.hpp"

namespace maestro::train {

class StepLog {
public:
    /// `done` steps lie behind the run; `begin_s` (comm::now_s()) is when it began.
    StepLog(const config::Train& settings, std::int64_t done, double begin_s)
        : settings_(settings), done_(done), begin_s_(begin_s) {}
    void step_done(const io::StepRow& row);

private:
    const config::Train& settings_;
    std::int64_t done_;
    double begin_s_;
    double tokens_ = 0, time_s_ = 0;  ///< since the last line
};

}  // namespace maestro::train
