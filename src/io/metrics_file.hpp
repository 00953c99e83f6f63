// metrics.h5: rows of steps, tasks, synchronizations of parameters, samples of a section, loads of experts,
// and terms of the loss (docs/file_formats.md). Opened for each append only, so that others can read it at
// any time; each change is whole or absent (hdf5_update.hpp).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/pulse.hpp"

namespace maestro::io {

struct StepRow {
    std::int64_t step = 0;  ///< from 1
    double loss = 0;
    std::int64_t tokens = 0;
    double time_s = 0, grad_norm = 0, learning_rate = 0;
};

struct TaskRow {
    int section = 0, replica = 0, stage = 0, rank = 0;
    std::int64_t step = 0;
    int micro_batch = 0;
    int phase = 0;  ///< 0 forward, 1 backward
    double start_s = 0, end_s = 0, wait_s = 0;
    double weights_s = 0;  ///< of the time from start_s to end_s, waiting for updated weights
    double work_s() const { return std::max(0.0, end_s - start_s - weights_s); }
};

/// All sums of a stage's gradients in a step, or all gathers of the weights that the step has updated, as the
/// leader of a lane saw them.
struct SyncRow {
    int section = 0, replica = 0, stage = 0, rank = 0;
    std::int64_t step = 0;
    int kind = 0;                               ///< 0 sums, 1 gathers
    int groups = 0;                             ///< of parameters: how many operations these were
    double start_s = 0, end_s = 0, busy_s = 0;  ///< of the first, of the last; while any was under way
};

/// Which micro-batch of a section held a sample.
struct AssignmentRow {
    std::int64_t step = 0;
    int section = 0, replica = 0, micro_batch = 0;
    std::int64_t sample = 0;
};

/// How evenly the router of a layer distributed a step's tokens over the layer's experts.
struct ExpertRow {
    std::int64_t step = 0;
    int section = 0;
    int layer = 0;  ///< of the model, from 0
    /// The load of the most and of the least loaded expert, each divided by the mean load. 1: balanced.
    double largest = 0, smallest = 0;
    double entropy = 0;  ///< of the distribution of choices, divided by that of a uniform one. 1: balanced
};

/// A term of a section's loss.
struct LossRow {
    std::int64_t step = 0;
    int section = 0;
    std::array<char, 16> name = {};  ///< zeros behind the text
    double value = 0;
};
/// Error(broken_invariant) for a name of more than 16 characters.
LossRow loss_row(std::int64_t step, int section, std::string_view name, double value);

struct MetricsHeader {
    std::string deck, environment;
    std::vector<std::string> sections;
    std::vector<int> windows{};   ///< by section, in micro-batches
    double time_scale = 1;        ///< of an emulated run: its seconds for one of the cluster
    std::int64_t first_step = 1;  ///< of the last start; earlier ones may have had another deck
};

struct Rows {
    std::vector<StepRow> steps;
    std::vector<TaskRow> tasks;
    std::vector<SyncRow> syncs = {};
    std::vector<AssignmentRow> assignment;  ///< of the steps whose tasks are recorded
    std::vector<ExpertRow> experts = {};    ///< of steps in which a section with experts was trained
    std::vector<LossRow> losses = {};       ///< of steps with targets
    bool empty() const {
        return steps.empty() && tasks.empty() && syncs.empty() && assignment.empty() && experts.empty() &&
               losses.empty();
    }
};

/// Number of rows of each table, which a checkpoint records of metrics.h5.
struct RowCounts {
    std::int64_t steps = 0, tasks = 0, syncs = 0, assignment = 0, experts = 0, losses = 0;
    bool operator==(const RowCounts&) const = default;
};

/// Writes a new file with these rows, replacing an older one. After Error(io_error) nothing has changed; this
/// also holds for the next two functions.
void create_metrics(const std::filesystem::path& path, const MetricsHeader& header, const Rows& rows,
                    Pulse& pulse);
void append_metrics(const std::filesystem::path& path, const Rows& rows, Pulse& pulse);
/// A run goes on: another header, and the rows that came after the first `counts` are gone. A file that an
/// older build wrote gets the table of losses, which it lacks. Error(bad_data) where the file is damaged or
/// has fewer rows.
void cut_metrics(const std::filesystem::path& path, const MetricsHeader& header, const RowCounts& counts,
                 Pulse& pulse);
/// The file is no longer that of the run: completes a change that a killed process has left, and sets the
/// file aside with this ending. Returns its new name. Error(io_error).
std::filesystem::path set_metrics_aside(const std::filesystem::path& path, const std::string& ending);
RowCounts count_rows(const std::filesystem::path& path);
Rows read_metrics(const std::filesystem::path& path);
/// The first rows alone. Error(bad_data) where there are fewer.
Rows read_metrics(const std::filesystem::path& path, const RowCounts& counts);
struct MeanLoss {
    double mean =
        std::numeric_limits<double>::quiet_NaN();  ///< of the steps with targets; NaN: there are none
    std::int64_t steps = 0;                        ///< those with and without targets
};
/// For each of the steps, the mean loss of the `most` steps after it, of fewer where the file has no more.
std::vector<MeanLoss> mean_losses_after(const std::filesystem::path& path,
                                        std::span<const std::int64_t> steps, std::int64_t most);
/// Names of the run's sections, by their colours.
std::vector<std::string> read_sections(const std::filesystem::path& path);
/// The deck of the run's last start, see MetricsHeader. Error(bad_data) where the file has none.
std::string read_deck(const std::filesystem::path& path);
/// MetricsHeader::windows, with 0 for an entry that is not a number.
std::vector<int> read_windows(const std::filesystem::path& path);
/// MetricsHeader::time_scale; NaN if it is not a number.
double read_time_scale(const std::filesystem::path& path);
/// MetricsHeader::first_step; nothing in a file that an older build wrote.
std::optional<std::int64_t> read_first_step(const std::filesystem::path& path);

}  // namespace maestro::io
