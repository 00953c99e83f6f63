// The run directory: whether this start may write there, which checkpoint it continues from, and what it
// stores. Every function is collective, and rank 0 writes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "config/command_line.hpp"
#include "io/checkpoint.hpp"
#include "train/checkpoint/checkpoint_search.hpp"
#include "train/setup/job.hpp"
#include "train/setup/run_report.hpp"

namespace maestro::train {

class RunDirectory {
public:
    /// Locks run.output and finds out whether this start may go on there, and from where. A start that may
    /// not changes nothing: Error(cannot_create) where another job is at work or a run would be overwritten,
    /// Error(bad_data) where the run cannot be continued, Error(io_error) where that cannot be told,
    /// Error(input_missing), Error(bad_deck). With --dry-run nothing is locked, and what is made to find out
    /// whether a run could write there is removed again; where the machines of the job are others, a note
    /// says if it could not.
    RunDirectory(const RunContext& context, const config::CommandLine& line, RunReport& report);

    /// The checkpoint that the run continues from; empty for a fresh start.
    const std::string& checkpoint() const { return found_.path; }
    const std::filesystem::path& path() const { return path_; }
    /// Error(bad_deck, all_ranks) where the deck or the samples are not those of the checkpoint.
    void check_resume(const data::Samples& samples);
    void load(Job& job);  ///< check_resume(), then reads the checkpoint, if there is one
    /// After load(): opens the log and makes or cuts metrics.h5. Returns the steps done.
    std::int64_t open(const Job& job);
    /// Newer checkpoints that are damaged, see io::Retention.
    const std::vector<std::filesystem::path>& damaged() const { return found_.damaged; }
    /// Notes about the directory, on rank 0.
    const std::vector<std::string>& notes() const { return notes_; }
    /// The step of the checkpoint in this directory that the run continues from; -1: there is none.
    std::int64_t saved_step() const { return saved_step_; }

private:
    void search();
    void refuse_without_checkpoint() const;
    void take_over();
    void check_room(bool other_machine);
    void open_metrics(const Job& job, const std::string& environment);
    /// Rows of another run, up to the checkpoint that this one begins with.
    io::Rows rows_of_other_run();

    const RunContext& context_;
    const comm::Communicator& world_;
    RunReport& report_;
    std::filesystem::path path_;
    std::string resume_;  ///< as asked
    FoundCheckpoint found_;
    bool in_this_run_ = false;  ///< the checkpoint is in this directory
    io::TrainState state_;      ///< of the checkpoint; rank 0
    /// Why this deck cannot continue from the checkpoint. Thrown once the samples are known too. Rank 0.
    std::vector<std::string> conflicts_;
    std::vector<std::string> notes_;  ///< for the log, once it is open
    std::int64_t saved_step_ = -1;
};

}  // namespace maestro::train
