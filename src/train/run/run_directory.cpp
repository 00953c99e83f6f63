#include "train/run/run_directory.hpp"

#include <fmt/format.h>

#include "base/log.hpp"
#include "comm/agree.hpp"
#include "io/checkpoint_reader.hpp"
#include "io/run_directory.hpp"
#include "train/run/environment_report.hpp"

namespace maestro::train {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void refuse_to_overwrite(const fs::path& path) {
    throw Error(
        ExitCode::cannot_create,
        fmt::format("{}: holds a run already; continue it with --resume auto, or set another run.output",
                    path.string()));
}

}  // namespace

RunDirectory::RunDirectory(const RunContext& context, const config::CommandLine& line, RunReport& report)
    : context_(context),
      world_(context.world),
      report_(report),
      path_(context.deck.run.output),
      resume_(line.resume) {
    io::RunLock lock;
    comm::agree(world_, [&] {
        if (world_.rank() != 0) return;
        if (line.dry_run)
            io::check_not_in_use(path_);
        else
            lock = io::RunLock(path_);
        if (resume_ == "none" && io::holds_run(path_)) refuse_to_overwrite(path_);
        if (line.dry_run) check_room(context.planned_device.has_value());
    });
    if (resume_ != "none") search();
    if (line.dry_run) return;
    // One of another run is no checkpoint of this run, which --resume auto would find.
    if (in_this_run_) report_.set_checkpoint(found_.path);
    if (!lock.warning().empty()) notes_.push_back(lock.warning());
    const bool made = world_.any(lock.made_directory());
    report_.hold_lock(std::move(lock));
    // If the start fails, a directory that it has made is removed again, and one that it may not continue is
    // left as it is. In all others, the exit.json of an earlier run must not pass for that of this run.
    if (!made && !world_.any(!conflicts_.empty())) take_over();
}

/// Whether a run could write here, which another machine need not be able to.
void RunDirectory::check_room(bool other_machine) {
    try {
        io::check_run_directory(path_);
    } catch (const Error& error) {
        if (!other_machine) throw;
        notes_.push_back(fmt::format("on this machine {}", error.what()));
    }
}

void RunDirectory::search() {
    found_ = find_checkpoint(world_, resume_ == "auto" ? path_.string() : resume_, context_.pulse);
    comm::agree(world_, [&] {
        if (world_.rank() != 0) return;
        if (found_.path.empty()) return refuse_without_checkpoint();
        std::error_code unknown;
        in_this_run_ = fs::equivalent(fs::path(found_.path).parent_path(), path_ / "checkpoints", unknown);
        if (!in_this_run_ && io::had_checkpoints(path_)) refuse_to_overwrite(path_);
        state_ = io::read_train_state(found_.path, context_.pulse);
        report_.step_done(state_.step);
        conflicts_ = config::resume_conflicts(context_.deck, state_.settings, state_.defaults);
    });
    in_this_run_ = world_.any(in_this_run_);
    for (const std::string& wrong : found_.reports)
        notes_.push_back(fmt::format(
            "damaged: {}; {} is used instead. The damaged one stays until the run has passed it, then it is "
            "renamed to end in .damaged",
            wrong, found_.path));
}

void RunDirectory::refuse_without_checkpoint() const {
    const std::string reports = fmt::format("{}", fmt::join(found_.reports, "\n  "));
    if (resume_ != "auto") {
        if (found_.reports.empty())
            throw Error(ExitCode::input_missing, fmt::format("--resume {}: no checkpoint there", resume_));
        throw Error(ExitCode::bad_data,
                    fmt::format("--resume {}: no whole checkpoint there:\n  {}", resume_, reports));
    }
    if (!found_.reports.empty())
        throw Error(
            ExitCode::bad_data,
            fmt::format("{}: the run cannot be continued, none of its checkpoints is whole:\n  {}\nNothing "
                        "was changed; bring one back from a copy, or set another run.output",
                        path_.string(), reports));
    if (io::had_checkpoints(path_))
        throw Error(
            ExitCode::bad_data,
            fmt::format("{}: the run cannot be continued, its checkpoints are gone or were set aside; "
                        "nothing was changed. Bring one back, or set another run.output",
                        path_.string()));
}

void RunDirectory::check_resume(const data::Samples& samples) {
    if (found_.path.empty()) return;
    comm::agree(world_, [&] {
        if (world_.rank() != 0) return;
        if (state_.samples != samples.identity())
            conflicts_.push_back(
                fmt::format("data.train: {} does not hold the samples of that run", samples.name()));
        if (conflicts_.empty()) return;
        throw Error(
            ExitCode::bad_deck,
            fmt::format(
                "--resume: {} was made with another deck; set these as they were, or start a new run:\n  {}",
                found_.path, fmt::join(conflicts_, "\n  ")));
    });
}

/// From here on the directory is that of this run.
void RunDirectory::take_over() {
    if (report_.has_directory()) return;
    comm::agree(world_, [&] {
        if (world_.rank() != 0) return;
        std::error_code error;
        fs::remove(path_ / "exit.json", error);
        if (error)
            throw Error(
                ExitCode::cannot_create,
                fmt::format("{}: cannot be removed: {}", (path_ / "exit.json").string(), error.message()));
    });
    report_.set_directory(path_);
}

void RunDirectory::load(Job& job) {
    if (found_.path.empty()) return;
    check_resume(job.samples());
    job.load(found_.path);
}

std::int64_t RunDirectory::open(const Job& job) {
    comm::agree(world_, [&] {
        if (world_.rank() != 0) return;
        io::prepare_run_directory(path_);
        log::open_file(path_ / "log.txt");
    });
    take_over();
    const std::string environment = environment_report(context_, job.backend().describe());
    for (const std::string& text : {environment, fmt::format("{}", fmt::join(job.description(), "\n"))})
        log::write_file(text);
    if (const std::string note = context_.topology.note(); !note.empty()) notes_.push_back(note);
    comm::agree(world_, [&] {
        if (world_.rank() == 0) open_metrics(job, environment);
    });
    for (const std::string& note : notes_) log::info("{}", note);
    std::vector<std::int64_t> step{state_.step};
    world_.broadcast(step);
    if (!found_.path.empty()) {
        saved_step_ = in_this_run_ ? step.front() : -1;
        log::info("resumed from {} after step {}", found_.path, step.front());
    } else if (resume_ == "auto") {
        log::info("nothing to resume in {}: a fresh start", path_.string());
    }
    report_.step_done(step.front());
    return step.front();
}

void RunDirectory::open_metrics(const Job& job, const std::string& environment) {
    const config::Deck& deck = context_.deck;
    io::MetricsHeader header{.deck = deck.text, .environment = environment, .sections = {}};
    header.time_scale = deck.time_scale();
    header.first_step = state_.step + 1;
    for (const auto& s : context_.scenario.graph.sections) header.sections.push_back(s.name);
    for (const auto& s : job.problem().stages) header.windows.push_back(s.window);
    const fs::path path = path_ / "metrics.h5";
    const auto set_aside = [&](const std::string& ending, const std::string& why) {
        std::error_code unknown;
        if (fs::exists(path, unknown))
            notes_.push_back(
                fmt::format("{}: renamed to {}", why, io::set_metrics_aside(path, ending).string()));
    };
    io::Rows rows;
    if (!in_this_run_) set_aside(".abandoned", "the metrics of a run that ended before its first checkpoint");
    if (found_.path.empty()) {
        // There are no rows yet.
    } else if (in_this_run_) {
        try {
            io::cut_metrics(path, header, state_.counts, context_.pulse);
            io::set_aside_newer(path_, state_.step, found_.damaged);
            return;
        } catch (const Error& error) {
            if (error.code() != ExitCode::bad_data) throw;
            notes_.push_back(fmt::format("{}; the rows up to step {} are lost, the weights are not",
                                         error.what(), state_.step));
            set_aside(".damaged", "damaged metrics");
        }
    } else {
        rows = rows_of_other_run();
    }
    io::create_metrics(path, header, rows, context_.pulse);
    if (in_this_run_) io::set_aside_newer(path_, state_.step, found_.damaged);
}

io::Rows RunDirectory::rows_of_other_run() {
    const fs::path path = fs::path(found_.path).parent_path().parent_path() / "metrics.h5";
    try {
        return io::read_metrics(path, state_.counts);
    } catch (const Error& error) {
        if (error.code() != ExitCode::bad_data) throw;
        notes_.push_back(fmt::format("{}; metrics.h5 begins after step {}", error.what(), state_.step));
        return {};
    }
}

}  // namespace maestro::train
