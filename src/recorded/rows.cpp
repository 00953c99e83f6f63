#include "recorded/rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <vector>

#include "base/error.hpp"

namespace maestro::recorded {

namespace {

constexpr double kMostSeconds = 1e9;

[[noreturn]] void refuse(const std::string& what) {
    throw Error(ExitCode::bad_data, what, Scope::all_ranks);
}

}  // namespace

std::string metrics_of(const std::string& run, const char* option) {
    std::string path = run + "/metrics.h5";
    if (std::error_code unknown; !std::filesystem::exists(path, unknown))
        throw Error(ExitCode::input_missing,
                    fmt::format("{} {}: there is no {}; name the directory of a run, its run.output", option,
                                run, path),
                    Scope::all_ranks);
    return path;
}

io::Rows read_rows(const std::string& run, const char* option, const graph::SectionGraph& graph) {
    const std::string path = metrics_of(run, option);
    const std::vector<std::string> names = io::read_sections(path);
    if (!std::equal(names.begin(), names.end(), graph.sections.begin(), graph.sections.end(),
                    [](const std::string& name, const graph::Section& s) { return name == s.name; }))
        refuse(
            fmt::format("{}: a run of the sections {}; the deck has others", path, fmt::join(names, ", ")));
    io::Rows rows = io::read_metrics(path);
    const auto known = [&](int section) {
        return section >= 0 && static_cast<std::size_t>(section) < names.size();
    };
    for (const io::TaskRow& t : rows.tasks)
        if (!known(t.section) || t.stage < 0 || t.phase < 0 || t.phase > 1 || t.step < 1 ||
            !std::isfinite(t.start_s) || !(t.end_s >= t.start_s && t.end_s - t.start_s <= kMostSeconds) ||
            !(t.weights_s >= 0 && t.weights_s <= kMostSeconds))
            refuse(path + ": /timeline has a row that is not a task");
    for (const io::StepRow& s : rows.steps)
        if (!(s.time_s >= 0 && s.time_s <= kMostSeconds))
            refuse(path + ": /steps has a time that is not valid");
    const double scale = io::read_time_scale(path);
    if (!(scale > 0 && scale <= kMostSeconds)) refuse(path + ": its time_scale is not a positive number");
    for (io::TaskRow& t : rows.tasks) {
        t.start_s /= scale;
        t.end_s /= scale;
        t.weights_s /= scale;
    }
    for (io::StepRow& s : rows.steps) s.time_s /= scale;
    for (const io::AssignmentRow& a : rows.assignment)
        if (!known(a.section) || a.step < 1)
            refuse(path + ": /assignment has a row that is not a sample of a section");
    return rows;
}

}  // namespace maestro::recorded
