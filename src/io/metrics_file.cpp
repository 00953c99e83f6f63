#include "io/metrics_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <sstream>

#include "base/error.hpp"
#include "io/hdf5.hpp"
#include "io/run_directory.hpp"

namespace maestro::io {

namespace {

constexpr std::int64_t kVersion = 1;
constexpr const char* kAssignment = "assignment";

/// Appends one member of every row as a column.
template <class T, class Row, class Member>
void put(hid_t group, const char* name, const std::vector<Row>& rows, Member member) {
    std::vector<T> column;
    column.reserve(rows.size());
    for (const Row& row : rows) column.push_back(static_cast<T>(row.*member));
    append_column<T>(group, name, column);
}

template <class T, class Row, class Member>
void get(hid_t group, const char* name, std::vector<Row>& rows, Member member) {
    const std::vector<T> column = read_column<T>(group, name);
    if (rows.empty()) rows.resize(column.size());
    if (rows.size() != column.size())
        throw Error(ExitCode::bad_data,
                    fmt::format("{}: {} rows beside {}", name, column.size(), rows.size()));
    for (std::size_t i = 0; i < rows.size(); ++i)
        rows[i].*member = static_cast<std::remove_reference_t<decltype(rows[i].*member)>>(column[i]);
}

}  // namespace

void Rows::truncate(std::int64_t step) {
    std::erase_if(steps, [&](const StepRow& r) { return r.step > step; });
    std::erase_if(tasks, [&](const TaskRow& r) { return r.step > step; });
    std::erase_if(assignment, [&](const AssignmentRow& r) { return r.step > step; });
}

void write_rows(std::int64_t file, const Rows& rows) {
    const Handle steps = make_group(file, "steps"), tasks = make_group(file, "timeline");
    put<std::int64_t>(steps, "step", rows.steps, &StepRow::step);
    put<double>(steps, "loss", rows.steps, &StepRow::loss);
    put<std::int64_t>(steps, "tokens", rows.steps, &StepRow::tokens);
    put<double>(steps, "time_s", rows.steps, &StepRow::time_s);
    put<double>(steps, "grad_norm", rows.steps, &StepRow::grad_norm);
    put<double>(steps, "learning_rate", rows.steps, &StepRow::learning_rate);
    put<std::int32_t>(tasks, "section", rows.tasks, &TaskRow::section);
    put<std::int32_t>(tasks, "replica", rows.tasks, &TaskRow::replica);
    put<std::int32_t>(tasks, "stage", rows.tasks, &TaskRow::stage);
    put<std::int32_t>(tasks, "rank", rows.tasks, &TaskRow::rank);
    put<std::int64_t>(tasks, "step", rows.tasks, &TaskRow::step);
    put<std::int32_t>(tasks, "micro_batch", rows.tasks, &TaskRow::micro_batch);
    put<std::int32_t>(tasks, "phase", rows.tasks, &TaskRow::phase);
    put<double>(tasks, "start_s", rows.tasks, &TaskRow::start_s);
    put<double>(tasks, "end_s", rows.tasks, &TaskRow::end_s);
    put<double>(tasks, "wait_s", rows.tasks, &TaskRow::wait_s);
    const Handle assignment = make_group(file, kAssignment);
    put<std::int64_t>(assignment, "step", rows.assignment, &AssignmentRow::step);
    put<std::int32_t>(assignment, "section", rows.assignment, &AssignmentRow::section);
    put<std::int32_t>(assignment, "replica", rows.assignment, &AssignmentRow::replica);
    put<std::int32_t>(assignment, "micro_batch", rows.assignment, &AssignmentRow::micro_batch);
    put<std::int64_t>(assignment, "sample", rows.assignment, &AssignmentRow::sample);
}

Rows read_rows(std::int64_t file) {
    const Handle steps(MAESTRO_HDF5(H5Gopen(file, "steps", H5P_DEFAULT)), H5Gclose);
    const Handle tasks(MAESTRO_HDF5(H5Gopen(file, "timeline", H5P_DEFAULT)), H5Gclose);
    Rows rows;
    get<std::int64_t>(steps, "step", rows.steps, &StepRow::step);
    get<double>(steps, "loss", rows.steps, &StepRow::loss);
    get<std::int64_t>(steps, "tokens", rows.steps, &StepRow::tokens);
    get<double>(steps, "time_s", rows.steps, &StepRow::time_s);
    get<double>(steps, "grad_norm", rows.steps, &StepRow::grad_norm);
    get<double>(steps, "learning_rate", rows.steps, &StepRow::learning_rate);
    get<std::int32_t>(tasks, "section", rows.tasks, &TaskRow::section);
    get<std::int32_t>(tasks, "replica", rows.tasks, &TaskRow::replica);
    get<std::int32_t>(tasks, "stage", rows.tasks, &TaskRow::stage);
    get<std::int32_t>(tasks, "rank", rows.tasks, &TaskRow::rank);
    get<std::int64_t>(tasks, "step", rows.tasks, &TaskRow::step);
    get<std::int32_t>(tasks, "micro_batch", rows.tasks, &TaskRow::micro_batch);
    get<std::int32_t>(tasks, "phase", rows.tasks, &TaskRow::phase);
    get<double>(tasks, "start_s", rows.tasks, &TaskRow::start_s);
    get<double>(tasks, "end_s", rows.tasks, &TaskRow::end_s);
    get<double>(tasks, "wait_s", rows.tasks, &TaskRow::wait_s);
    if (MAESTRO_HDF5(H5Lexists(file, kAssignment, H5P_DEFAULT)) == 0) return rows;  // of an older build
    const Handle assignment(MAESTRO_HDF5(H5Gopen(file, kAssignment, H5P_DEFAULT)), H5Gclose);
    get<std::int64_t>(assignment, "step", rows.assignment, &AssignmentRow::step);
    get<std::int32_t>(assignment, "section", rows.assignment, &AssignmentRow::section);
    get<std::int32_t>(assignment, "replica", rows.assignment, &AssignmentRow::replica);
    get<std::int32_t>(assignment, "micro_batch", rows.assignment, &AssignmentRow::micro_batch);
    get<std::int64_t>(assignment, "sample", rows.assignment, &AssignmentRow::sample);
    return rows;
}

void create_metrics(const std::filesystem::path& path, const MetricsHeader& header, const Rows& rows) {
    const std::filesystem::path partial = path.string() + ".partial";
    {
        Handle file = create_file(partial);
        write_attribute(file, "format", std::string("maestro-metrics"));
        write_attribute(file, "version", kVersion);
        write_attribute(file, "deck", header.deck);
        write_attribute(file, "environment", header.environment);
        write_attribute(file, "sections", fmt::format("{}", fmt::join(header.sections, "\n")));
        write_attribute(file, "windows", fmt::format("{}", fmt::join(header.windows, "\n")));
        if (header.time_scale != 1) write_attribute(file, "time_scale", fmt::format("{}", header.time_scale));
        write_rows(file, rows);
        MAESTRO_HDF5(H5Fflush(file, H5F_SCOPE_GLOBAL));
        file.close();
    }
    std::filesystem::rename(partial, path);
}

void append_metrics(const std::filesystem::path& path, const Rows& rows) {
    if (rows.empty()) return;
    // HDF5 hides a full disk and leaves a broken file; a column grows by a chunk of 32 KiB at least.
    check_free_space(path.parent_path(), rows.bytes() + (2 << 20));
    Handle file = open_file(path, true);
    write_rows(file, rows);
    MAESTRO_HDF5(H5Fflush(file, H5F_SCOPE_GLOBAL));
    file.close();
}

Rows read_metrics(const std::filesystem::path& path) {
    const Handle file = open_file(path, false);
    return read_rows(file);
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
    const Handle file = open_file(path, false);
    return lines_of(read_text_attribute(file, "sections"));
}

std::vector<int> read_windows(const std::filesystem::path& path) {
    const Handle file = open_file(path, false);
    if (MAESTRO_HDF5(H5Aexists(file, "windows")) == 0) return {};  // of an older build
    std::vector<int> windows;
    for (const std::string& line : lines_of(read_text_attribute(file, "windows")))
        windows.push_back(number_of<int>(line).value_or(0));
    return windows;
}

double read_time_scale(const std::filesystem::path& path) {
    const Handle file = open_file(path, false);
    if (MAESTRO_HDF5(H5Aexists(file, "time_scale")) == 0) return 1;
    return number_of<double>(read_text_attribute(file, "time_scale")).value_or(std::nan(""));
}

}  // namespace maestro::io
