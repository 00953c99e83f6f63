// Collects rows of metrics on every rank. Now and then rank 0 gathers them and appends them to metrics.h5.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "config/deck.hpp"
#include "io/metrics_file.hpp"
#include "model/module.hpp"
#include "schedule/problem/step_plan.hpp"

namespace maestro::train {

/// Adds up the parts that ranks have of the same term of a section's loss in a step, in their order. Returns
/// the rows by step, section and name.
std::vector<io::LossRow> add_loss_parts(std::vector<io::LossRow> parts);

class Recorder {
public:
    Recorder(const comm::Communicator& world, std::filesystem::path path, const config::Metrics& settings,
             Pulse& pulse)
        : world_(world),
          path_(std::move(path)),
          interval_s_(settings.interval_s),
          timeline_every_(settings.timeline_every),
          pulse_(pulse) {}
    /// Keeps the tasks of a step, and on rank 0 which samples they held, if it is one of those that are
    /// recorded.
    void tasks_done(const schedule::StepPlan& plan, std::span<const io::TaskRow> rows);
    /// Keeps those of the steps that are recorded.
    void syncs_done(std::span<const io::SyncRow> rows);
    void step_done(const io::StepRow& row) { waiting_.steps.push_back(row); }
    /// Keeps the rows of every step. Rank 0 alone has any.
    void experts_done(std::span<const io::ExpertRow> rows) {
        waiting_.experts.insert(waiting_.experts.end(), rows.begin(), rows.end());
    }
    /// Keeps this rank's parts of the terms of a section's loss, of every step.
    void losses_done(std::int64_t step, int section, std::span<const model::LossSum> sums);
    bool due() const;  ///< rank 0: longer than the interval since the last flush
    /// Collective: everything so far goes to the file. Where the disk is full, rows wait in the memory of
    /// rank 0 for the next flush, up to some million, and the fault is returned, the same on all ranks;
    /// empty: all rows are in the file.
    std::string flush();

private:
    bool recorded(std::int64_t step) const { return timeline_every_ > 0 && step % timeline_every_ == 0; }

    const comm::Communicator& world_;
    std::filesystem::path path_;
    double interval_s_;
    std::int64_t timeline_every_;
    Pulse& pulse_;
    double last_s_ = 0;
    std::vector<io::TaskRow> tasks_;
    std::vector<io::SyncRow> syncs_;
    std::vector<io::LossRow> losses_;
    io::Rows waiting_ = {};  ///< rank 0: gathered, for the file
};

}  // namespace maestro::train
