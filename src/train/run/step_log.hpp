// The line that a run prints every so many steps, and warnings of steps without targets.
#pragma once

#include <cstdint>
#include <string>

#include "config/deck.hpp"
#include "io/metrics_file.hpp"

namespace maestro::train {

class StepLog {
public:
    /// `done` steps lie behind the run; `begin_s` (comm::now_s()) is when it began.
    StepLog(const config::Train& settings, std::int64_t done, double begin_s)
        : settings_(settings), done_(done), begin_s_(begin_s) {}
    /// A row whose loss is NaN is that of a step without targets. The first few of these are named.
    void step_done(const io::StepRow& row);
    /// Rank 0, after the last step: how many steps had no targets; empty where all had.
    std::string describe() const;

private:
    const config::Train& settings_;
    std::int64_t done_;
    double begin_s_;
    double tokens_ = 0, time_s_ = 0;  ///< since the last line
    std::int64_t steps_ = 0, without_targets_ = 0;
};

}  // namespace maestro::train
