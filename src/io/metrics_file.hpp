// metrics.h5: a row a step, a row a task and a row a sample of a section (docs/file_formats.md). Opened for
// each append only, so that the file is whole in between and others can read it at any time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

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
};

/// Which micro-batch of a section held a sample.
struct AssignmentRow {
    std::int64_t step = 0;
    int section = 0, replica = 0, micro_batch = 0;
    std::int64_t sample = 0;
};

struct MetricsHeader {
    std::string deck, environment;
    std::vector<std::string> sections;
    std::vector<int> windows{};  ///< by section, in micro-batches
    double time_scale = 1;       ///< of an emulated run: its seconds for one of the cluster
};

struct Rows {
    std::vector<StepRow> steps;
    std::vector<TaskRow> tasks;
    std::vector<AssignmentRow> assignment;  ///< of the steps whose tasks are recorded
    bool empty() const { return steps.empty() && tasks.empty() && assignment.empty(); }
    std::size_t bytes() const { return tasks.size() * 64 + steps.size() * 48 + assignment.size() * 28; }
    /// Drops what came after `step`.
    void truncate(std::int64_t step);
};

/// A new file with these rows, made under another name and renamed.
void create_metrics(const std::filesystem::path& path, const MetricsHeader& header, const Rows& rows);
/// Short open, append, flush, close. Throws Error(io_error).
void append_metrics(const std::filesystem::path& path, const Rows& rows);
Rows read_metrics(const std::filesystem::path& path);
/// Names of the run's sections, by their colours.
std::vector<std::string> read_sections(const std::filesystem::path& path);
/// MetricsHeader::windows; 0 for one that is no number; empty in a file of an older build.
std::vector<int> read_windows(const std::filesystem::path& path);
/// MetricsHeader::time_scale; NaN where it is no number.
double read_time_scale(const std::filesystem::path& path);

/// The same columns inside another file, for checkpoints.
void write_rows(std::int64_t hdf5_file, const Rows& rows);
Rows read_rows(std::int64_t hdf5_file);

}  // namespace maestro::io
