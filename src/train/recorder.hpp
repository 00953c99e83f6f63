// Rows of metrics on their way to metrics.h5: kept on every rank, gathered and appended now and then by rank
// 0.
#pragma once

#include <filesystem>
#include <vector>

#include "comm/communicator.hpp"
#include "io/metrics_file.hpp"

namespace maestro::train {

class Recorder {
public:
    Recorder(const comm::Communicator& world, std::filesystem::path path, double interval_s, bool timeline)
        : world_(world), path_(std::move(path)), interval_s_(interval_s), timeline_(timeline) {}
    /// Where the tasks of a step go.
    std::vector<io::TaskRow>& tasks() { return tasks_; }
    void step_done(const io::StepRow& row) { steps_.push_back(row); }
    bool due() const;  ///< rank 0: longer than the interval since the last flush
    /// Collective: everything so far goes to the file.
    void flush();

private:
    const comm::Communicator& world_;
    std::filesystem::path path_;
    double interval_s_;
    bool timeline_;
    double last_s_ = 0;
    std::vector<io::StepRow> steps_;
    std::vector<io::TaskRow> tasks_;
};

}  // namespace maestro::train
