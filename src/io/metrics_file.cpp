#include "io/metrics_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <optional>
#include <sstream>
#include <string_view>

#include "base/error.hpp"
#include "io/hdf5.hpp"
#include "io/hdf5_update.hpp"
#include "io/run_directory.hpp"
#include "storage/file.hpp"

namespace maestro::io {

namespace {

constexpr std::int64_t kVersion = 1;
constexpr const char *kSteps = "steps", *kTasks = "timeline", *kSyncs = "syncs", *kAssignment = "assignment",
                     *kExperts = "experts", *kLosses = "losses";

// The columns of each table: their type in the file, their name, the member of a row.
template <class Visit>
void each_column(const StepRow*, Visit&& visit) {
    visit(std::int64_t{}, "step", &StepRow::step);
    visit(double{}, "loss", &StepRow::loss);
    visit(std::int64_t{}, "tokens", &StepRow::tokens);
    visit(double{}, "time_s", &StepRow::time_s);
    visit(double{}, "grad_norm", &StepRow::grad_norm);
    visit(double{}, "learning_rate", &StepRow::learning_rate);
}

template <class Visit>
void each_column(const TaskRow*, Visit&& visit) {
    visit(std::int32_t{}, "section", &TaskRow::section);
    visit(std::int32_t{}, "replica", &TaskRow::replica);
    visit(std::int32_t{}, "stage", &TaskRow::stage);
    visit(std::int32_t{}, "rank", &TaskRow::rank);
    visit(std::int64_t{}, "step", &TaskRow::step);
    visit(std::int32_t{}, "micro_batch", &TaskRow::micro_batch);
    visit(std::int32_t{}, "phase", &TaskRow::phase);
    visit(double{}, "start_s", &TaskRow::start_s);
    visit(double{}, "end_s", &TaskRow::end_s);
    visit(double{}, "wait_s", &TaskRow::wait_s);
    visit(double{}, "weights_s", &TaskRow::weights_s);
}

template <class Visit>
void each_column(const SyncRow*, Visit&& visit) {
    visit(std::int32_t{}, "section", &SyncRow::section);
    visit(std::int32_t{}, "replica", &SyncRow::replica);
    visit(std::int32_t{}, "stage", &SyncRow::stage);
    visit(std::int32_t{}, "rank", &SyncRow::rank);
    visit(std::int64_t{}, "step", &SyncRow::step);
    visit(std::int32_t{}, "kind", &SyncRow::kind);
    visit(std::int32_t{}, "groups", &SyncRow::groups);
    visit(double{}, "start_s", &SyncRow::start_s);
    visit(double{}, "end_s", &SyncRow::end_s);
    visit(double{}, "busy_s", &SyncRow::busy_s);
}

template <class Visit>
void each_column(const AssignmentRow*, Visit&& visit) {
    visit(std::int64_t{}, "step", &AssignmentRow::step);
    visit(std::int32_t{}, "section", &AssignmentRow::section);
    visit(std::int32_t{}, "replica", &AssignmentRow::replica);
    visit(std::int32_t{}, "micro_batch", &AssignmentRow::micro_batch);
    visit(std::int64_t{}, "sample", &AssignmentRow::sample);
}

template <class Visit>
void each_column(const ExpertRow*, Visit&& visit) {
    visit(std::int64_t{}, "step", &ExpertRow::step);
    visit(std::int32_t{}, "section", &ExpertRow::section);
    visit(std::int32_t{}, "layer", &ExpertRow::layer);
    visit(double{}, "largest", &ExpertRow::largest);
    visit(double{}, "smallest", &ExpertRow::smallest);
    visit(double{}, "entropy", &ExpertRow::entropy);
}

template <class Visit>
void each_column(const LossRow*, Visit&& visit) {
    visit(std::int64_t{}, "step", &LossRow::step);
    visit(std::int32_t{}, "section", &LossRow::section);
    visit(ShortText{}, "name", &LossRow::name);
    visit(double{}, "value", &LossRow::value);
}

template <class Row>
void write_table(hid_t file, const char* name, const std::vector<Row>& rows) {
    const Handle group = make_group(file, name);
    each_column(static_cast<const Row*>(nullptr), [&](auto type, const char* column, auto member) {
        std::vector<decltype(type)> values;
        values.reserve(rows.size());
        for (const Row& row : rows) values.push_back(static_cast<decltype(type)>(row.*member));
        append_column<decltype(type)>(group, column, values);
    });
}

template <class Row>
std::vector<Row> read_table(hid_t file, const char* name) {
    const Handle group(MAESTRO_HDF5(H5Gopen(file, name, H5P_DEFAULT)), H5Gclose);
    std::vector<Row> rows;
    each_column(static_cast<const Row*>(nullptr), [&](auto type, const char* column, auto member) {
        const auto values = read_column<decltype(type)>(group, column);
        if (rows.empty()) rows.resize(values.size());
        if (rows.size() != values.size())
            throw Error(ExitCode::bad_data,
                        fmt::format("{}: {} rows beside {}", column, values.size(), rows.size()));
        for (std::size_t i = 0; i < rows.size(); ++i)
            rows[i].*member = static_cast<std::remove_reference_t<decltype(rows[i].*member)>>(values[i]);
    });
    return rows;
}

template <class Row>
void cut_table(hid_t file, const char* name, std::int64_t rows) {
    const Handle group(MAESTRO_HDF5(H5Gopen(file, name, H5P_DEFAULT)), H5Gclose);
    each_column(static_cast<const Row*>(nullptr),
                [&](auto, const char* column, auto) { cut_column(group, column, rows); });
}

void write_rows(hid_t file, const Rows& rows) {
    write_table(file, kSteps, rows.steps);
    write_table(file, kTasks, rows.tasks);
    write_table(file, kSyncs, rows.syncs);
    write_table(file, kAssignment, rows.assignment);
    write_table(file, kExperts, rows.experts);
    write_table(file, kLosses, rows.losses);
}

/// Files of older builds have none.
bool has_losses(hid_t file) {
    return MAESTRO_HDF5(H5Lexists(file, kLosses, H5P_DEFAULT)) > 0;
}

void write_header(hid_t file, const MetricsHeader& header) {
    write_attribute(file, "deck", header.deck);
    write_attribute(file, "environment", header.environment);
    write_attribute(file, "sections", fmt::format("{}", fmt::join(header.sections, "\n")));
    write_attribute(file, "windows", fmt::format("{}", fmt::join(header.windows, "\n")));
    write_attribute(file, "first_step", header.first_step);
    if (header.time_scale != 1) write_attribute(file, "time_scale", fmt::format("{}", header.time_scale));
}

Rows read_rows(hid_t file) {
    return {.steps = read_table<StepRow>(file, kSteps),
            .tasks = read_table<TaskRow>(file, kTasks),
            .syncs = read_table<SyncRow>(file, kSyncs),
            .assignment = read_table<AssignmentRow>(file, kAssignment),
            .experts = read_table<ExpertRow>(file, kExperts),
            .losses = has_losses(file) ? read_table<LossRow>(file, kLosses) : std::vector<LossRow>{}};
}

template <class Row>
void cut_rows(std::vector<Row>& rows, std::int64_t count, const std::filesystem::path& path) {
    if (static_cast<std::int64_t>(rows.size()) < count)
        throw Error(ExitCode::bad_data,
                    fmt::format("{}: holds {} rows where there were {}", path.string(), rows.size(), count));
    rows.resize(static_cast<std::size_t>(count));
}

/// Reads a file to which a run may be appending, but not while it does; where there are no locks, whenever it
/// is called.
template <class Read>
auto read_locked(const std::filesystem::path& path, Read&& read) {
    const storage::Descriptor open(path, O_RDONLY);  // what is wrong with the file, File says
    const storage::FileLock lock(open, storage::FileLock::Kind::shared);
    Pulse quiet;
    const File file(path, File::Mode::read, quiet);
    return file.read(read);
}

}  // namespace

LossRow loss_row(std::int64_t step, int section, std::string_view name, double value) {
    return {.step = step, .section = section, .name = short_text(name), .value = value};
}

void create_metrics(const std::filesystem::path& path, const MetricsHeader& header, const Rows& rows,
                    Pulse& pulse) {
    create_whole(path, pulse, [&](hid_t file) {
        write_attribute(file, "format", std::string("maestro-metrics"));
        write_attribute(file, "version", kVersion);
        write_header(file, header);
        write_rows(file, rows);
    });
}

void append_metrics(const std::filesystem::path& path, const Rows& rows, Pulse& pulse) {
    if (rows.empty()) return;
    change_whole(path, pulse, [&](hid_t file) { write_rows(file, rows); });
}

void cut_metrics(const std::filesystem::path& path, const MetricsHeader& header, const RowCounts& counts,
                 Pulse& pulse) {
    change_whole(path, pulse, [&](hid_t file) {
        write_header(file, header);
        cut_table<StepRow>(file, kSteps, counts.steps);
        cut_table<TaskRow>(file, kTasks, counts.tasks);
        cut_table<SyncRow>(file, kSyncs, counts.syncs);
        cut_table<AssignmentRow>(file, kAssignment, counts.assignment);
        cut_table<ExpertRow>(file, kExperts, counts.experts);
        if (!has_losses(file)) write_table(file, kLosses, std::vector<LossRow>{});
        cut_table<LossRow>(file, kLosses, counts.losses);
    });
}

std::filesystem::path set_metrics_aside(const std::filesystem::path& path, const std::string& ending) {
    finish_change(path);
    return set_aside(path, ending);
}

RowCounts count_rows(const std::filesystem::path& path) {
    finish_change(path);
    return read_locked(path, [](hid_t file) {
        const auto rows = [&](const char* table) {
            const Handle group(MAESTRO_HDF5(H5Gopen(file, table, H5P_DEFAULT)), H5Gclose);
            return rows_of_column(group, "step");
        };
        return RowCounts{.steps = rows(kSteps),
                         .tasks = rows(kTasks),
                         .syncs = rows(kSyncs),
                         .assignment = rows(kAssignment),
                         .experts = rows(kExperts),
                         .losses = has_losses(file) ? rows(kLosses) : 0};
    });
}

Rows read_metrics(const std::filesystem::path& path) {
    return read_locked(path, [](hid_t open) { return read_rows(open); });
}

Rows read_metrics(const std::filesystem::path& path, const RowCounts& counts) {
    Rows rows = read_metrics(path);
    cut_rows(rows.steps, counts.steps, path);
    cut_rows(rows.tasks, counts.tasks, path);
    cut_rows(rows.syncs, counts.syncs, path);
    cut_rows(rows.assignment, counts.assignment, path);
    cut_rows(rows.experts, counts.experts, path);
    cut_rows(rows.losses, counts.losses, path);
    return rows;
}

std::vector<MeanLoss> mean_losses_after(const std::filesystem::path& path,
                                        std::span<const std::int64_t> steps, std::int64_t most) {
    return read_locked(path, [&](hid_t file) {
        const Handle group(MAESTRO_HDF5(H5Gopen(file, kSteps, H5P_DEFAULT)), H5Gclose);
        const std::int64_t rows = rows_of_column(group, "step");
        std::vector<MeanLoss> means(steps.size());
        if (rows == 0) return means;
        // Every step has one row, in their order.
        const std::int64_t before = read_column<std::int64_t>(group, "step", 0, 1).front() - 1;
        for (std::size_t i = 0; i < steps.size(); ++i) {
            const std::int64_t first = steps[i] - before, count = std::min(most, rows - first);
            if (first < 0 || count <= 0) continue;
            auto losses = read_column<double>(group, "loss", first, count);
            std::erase_if(losses, [](double loss) { return std::isnan(loss); });  // of steps without targets
            means[i].steps = count;
            if (!losses.empty())
                means[i].mean =
                    std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
        }
        return means;
    });
}

namespace {

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
}

template <class Number>
std::optional<Number> number_of(const std::string& text) {
    Number number{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return number;
}

}  // namespace

std::vector<std::string> read_sections(const std::filesystem::path& path) {
    return read_locked(path, [](hid_t open) { return lines_of(read_text_attribute(open, "sections")); });
}

std::string read_deck(const std::filesystem::path& path) {
    return read_locked(path, [](hid_t open) { return read_text_attribute(open, "deck"); });
}

std::vector<int> read_windows(const std::filesystem::path& path) {
    return read_locked(path, [](hid_t open) {
        std::vector<int> windows;
        for (const std::string& line : lines_of(read_text_attribute(open, "windows")))
            windows.push_back(number_of<int>(line).value_or(0));
        return windows;
    });
}

double read_time_scale(const std::filesystem::path& path) {
    return read_locked(path, [](hid_t open) {
        if (MAESTRO_HDF5(H5Aexists(open, "time_scale")) == 0) return 1.0;
        return number_of<double>(read_text_attribute(open, "time_scale")).value_or(std::nan(""));
    });
}

std::optional<std::int64_t> read_first_step(const std::filesystem::path& path) {
    return read_locked(path, [](hid_t open) -> std::optional<std::int64_t> {
        if (MAESTRO_HDF5(H5Aexists(open, "first_step")) == 0) return std::nullopt;
        return read_integer_attribute(open, "first_step");
    });
}

}  // namespace maestro::io
