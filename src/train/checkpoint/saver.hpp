// Saves the state of a run to checkpoints and restores it. A checkpoint is copied between two steps and
// written by a thread of each rank while the next steps run. After every part of it that can fail, all ranks
// agree on whether it has failed anywhere: for what threads do, between two later steps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/pulse.hpp"
#include "comm/communicator.hpp"
#include "config/deck.hpp"
#include "graph/section_graph.hpp"
#include "io/checkpoint.hpp"
#include "train/checkpoint/background_task.hpp"
#include "train/checkpoint/checkpoint_write.hpp"
#include "train/checkpoint/snapshot.hpp"
#include "train/step/local_stage.hpp"

namespace maestro::train {

/// What is saved and restored on this rank. The caller owns what it refers to.
struct RunState {
    const comm::Communicator& world;
    const config::Deck& deck;
    const graph::SectionGraph& graph;
    std::span<const std::unique_ptr<LocalStage>> stages;
    std::uint64_t samples = 0;  ///< data::SampleFile::identity() of the training samples
    Pulse& pulse;
    std::optional<std::vector<std::int32_t>> ends = {};  ///< see io::TrainState
};

/// Writes RUN/checkpoints/step-NNNNNN; the ranks of a section write its file, each its part, and rank 0 the
/// rest. All functions are collective over the world and called between two steps. They throw on all ranks
/// Error(io_error, not_finite), and Error(peer_lost) on the rank whose thread makes no progress. An error
/// leaves nothing unfinished under the final name, and the older checkpoints stay. A full disk is no error as
/// long as there is a complete checkpoint in the run directory: the log warns, the unfinished one is removed,
/// and the caller goes on. For save() it always is one.
/// What to do once a disk has room again, where the run has a whole checkpoint and where it has none.
inline constexpr const char* kContinue = "run again with --resume auto";
inline constexpr const char* kStartAgain = "run again with the same --resume, or with auto if there was none";

class Saver {
public:
    struct Settings {
        std::filesystem::path run;
        std::vector<std::filesystem::path> damaged = {};  ///< see io::Retention
        std::int64_t saved = -1;  ///< step of the newest complete checkpoint there; -1: there is none
        bool background = false;  ///< whether start() will be used, which needs memory for a copy
        std::vector<int> processors = {};  ///< on which threads may run, see BackgroundTask
    };
    Saver(const RunState& state, Settings settings);

    /// Copies the state after `step` and lets it be written in the background. Waits first until the
    /// checkpoint before is complete.
    void start(std::int64_t step);
    /// To be called after every step. Where the threads of all ranks are done, it continues with what comes
    /// next for the checkpoint under way. Throws the error of any thread that has failed.
    void poll();
    /// Waits until the checkpoint under way is complete, if there is one.
    void finish();
    /// Writes the state after `step` at once and returns when it is complete, without a copy.
    void save(std::int64_t step);
    /// There is no checkpoint after `step`, because of a full disk, which is an error or a warning as in
    /// start(). `fault`: what is full, the same on all ranks.
    void skip(std::int64_t step, const std::string& fault);
    /// Whether the run directory has a complete checkpoint.
    bool has_complete() const { return !newest_complete().empty(); }
    /// The step of the newest checkpoint that is complete; -1 where there is none.
    std::int64_t saved_step() const { return settings_.saved; }

    /// The checkpoint that was completed last; empty: none.
    const std::string& newest() const { return newest_; }
    /// After which step the checkpoint under way was taken; -1: none is.
    std::int64_t step_under_way() const { return phase_ == Phase::idle ? -1 : step_; }
    std::size_t bytes() const { return snapshot_ ? snapshot_->bytes() : 0; }  ///< of memory for the copy

private:
    /// What is under way: nothing, the writing of files by all ranks, or what rank 0 does after it, until the
    /// checkpoint has its name.
    enum class Phase { idle, writing, completing };

    const comm::Communicator& world() const { return state_.world; }
    bool coordinator() const { return world().rank() == 0; }
    void prepare();
    bool begin(std::int64_t step, bool copy);
    void check_all_finite() const;
    void add_images(CheckpointWrite& write);
    void choose_best();
    bool is_damaged(const std::filesystem::path& checkpoint) const;
    void advance();
    bool agreed(const std::function<void()>& action);
    void give_up();
    std::string newest_complete() const;
    void collect();
    std::function<void(Pulse&)> completion() const;
    void report();

    RunState state_;
    Settings settings_;
    std::optional<SectionFiles> files_;
    std::optional<Snapshot> snapshot_;
    Phase phase_ = Phase::idle;
    std::int64_t step_ = -1;  ///< of the checkpoint under way
    bool must_ = false;       ///< it is an error if the disk is full
    std::shared_ptr<CheckpointWrite> write_;
    std::string newest_;
    std::string train_file_;                  ///< on rank 0, as the next two: name of train.h5
    std::uint64_t train_bytes_ = 0;           ///< its size
    std::vector<io::ManifestEntry> entries_;  ///< of the files that were written
    std::vector<std::int64_t> besides_;       ///< on rank 0, see choose_best(): steps of older checkpoints
    std::string best_note_;                   ///< for the log, where the best one is not among the newest
    std::int64_t noted_ = -1;                 ///< of which one the log has said so
    BackgroundTask task_;                     ///< the last member: it ends before what it uses
};

/// Collective. Loads the weights and moments of each rank's shards from a verified checkpoint. Without an
/// optimizer, as in an evaluation, the moments are skipped.
void load_checkpoint(const RunState& state, const std::string& checkpoint);

}  // namespace maestro::train
