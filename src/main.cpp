// A run from start to end. Everything that holds MPI is destroyed before the environment; errors end up here.
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/device.hpp"
#include "base/as_error.hpp"
#include "base/log.hpp"
#include "calibration/calibrate.hpp"
#include "comm/agree.hpp"
#include "comm/environment.hpp"
#include "comm/heartbeat.hpp"
#include "comm/roll_call.hpp"
#include "comm/topology.hpp"
#include "comm/watchdog.hpp"
#include "config/command_line.hpp"
#include "config/deck_text.hpp"
#include "io/metrics_file.hpp"
#include "plan/plan.hpp"
#include "recorded/corrections.hpp"
#include "recorded/rows.hpp"
#include "simulation/simulation.hpp"
#include "train/evaluation/evaluator.hpp"
#include "train/interchange/export.hpp"
#include "train/interchange/folder_keys.hpp"
#include "train/interchange/import.hpp"
#include "train/run/dry_run.hpp"
#include "train/run/trainer.hpp"
#include "train/setup/device.hpp"
#include "train/setup/interruption.hpp"
#include "train/setup/nodes.hpp"
#include "workload/scenario.hpp"

using namespace maestro;

namespace {

/// Whose first answer may be long in coming: nothing of the deck is known yet.
double start_timeout_s() {
    constexpr double kDefault = 120;
    const char* text = std::getenv("MAESTRO_START_TIMEOUT");
    const double seconds = text ? std::strtod(text, nullptr) : 0;
    return seconds > 0 ? seconds : kDefault;
}

/// How long ranks wait for a simulation or a plan, which rank 0 runs alone and without heartbeats.
constexpr double kSimulationS = 24 * 3600;

/// Reports an error that this rank has alone, and ends the job if there are other ranks.
void end_job(const Error& error, const comm::Communicator& world, const train::RunReport& report) {
    const int code = static_cast<int>(error.code());
    report.write(code, error.what());
    const std::string text = error.what(), rank = fmt::format("rank {}", world.rank());
    const bool named = text.starts_with(rank + " (");  // by the watchdog or a wait
    log::write_error(named ? "maestro: " + text : fmt::format("maestro: {}: {}", rank, text));
    if (world.size() > 1) comm::abort_world(code);
}

/// What has not been reached where a signal ends the command.
std::string unfinished(const config::CommandLine& line) {
    switch (line.command) {
        case config::Command::evaluate:
            return "the evaluation is not complete";
        case config::Command::export_weights:
            return "the export is not complete, what it had written is removed";
        case config::Command::train:
            return line.dry_run ? "the dry run is not complete" : "training has not begun";
        default:
            return "the command is not complete";
    }
}

/// A deck to parse: its text, where it is from, and values of --set.
struct DeckSource {
    std::string text, path;
    std::vector<std::string> set;
};

/// Returns the deck that a run was last started with, with its values of --set. `option` names the run.
DeckSource deck_of_run(const comm::Communicator& world, const std::string& run, const char* option) {
    std::string text;
    comm::agree(world, [&] {
        if (world.rank() == 0) text = io::read_deck(recorded::metrics_of(run, option));
    });
    world.broadcast(text);
    config::StoredDeck stored = config::parse_stored(std::move(text));
    return {std::move(stored.text), run + "/metrics.h5 (deck)", std::move(stored.set)};
}

/// Returns the deck of the command: that of a file, or of the run of --from. The output of the latter is the
/// run, and its values of --set come before those given now.
DeckSource deck_of_command(const comm::Communicator& world, const config::CommandLine& line) {
    if (!line.from.empty()) {
        DeckSource source = deck_of_run(world, line.from, "--from");
        source.set.push_back("run.output=" + line.from);  // it may have been moved
        source.set.insert(source.set.end(), line.set.begin(), line.set.end());
        return source;
    }
    std::string text;
    comm::agree(world, [&] {
        if (world.rank() == 0) text = config::read_text(line.deck);
    });
    world.broadcast(text);
    return {std::move(text), line.deck, line.set};
}

/// Collective.
config::Deck parse(const comm::Communicator& world, const DeckSource& source, config::Command command,
                   config::Times times) {
    return config::parse_deck(
        source.text, source.path, source.set, command, times,
        [&](const config::Deck& read, bool sound) { return workload::check_scenario(read, times, sound); },
        [&](const std::string& weights, const std::string& kind) {
            return train::folder_keys(world, weights, kind);
        });
}

/// Returns the run of --measured, if there is one.
std::optional<recorded::Run> measured_run(const comm::Communicator& world, const config::CommandLine& line) {
    if (line.measured.empty()) return std::nullopt;
    const DeckSource source = deck_of_run(world, line.measured, "--measured");
    config::Deck deck = parse(world, source, line.command, config::Times::model);
    workload::Scenario scenario = workload::make_scenario(deck);
    return recorded::Run{line.measured, std::move(deck), std::move(scenario)};
}

ExitCode run(int argc, char** argv, const comm::Communicator& world, comm::Watchdog& watchdog,
             train::Interruption& interruption, train::RunReport& report) {
    config::CommandLine line = config::parse_command_line(argc, argv);  // 1. what is asked
    if (line.answered) {
        log::info("{}", line.answer);
        return ExitCode::done;
    }
    interruption.set_unfinished(unfinished(line));
    comm::check_same_build(world);  // 2. that all ranks run the same build
    const bool calibrates = line.command == config::Command::calibrate;
    if (calibrates) {
        watchdog.doing("the calibration");
        watchdog.pause();  // it reports to nobody
    }
    if (calibrates && line.deck.empty()) {
        calibration::run_calibration(world, comm::place_rank(world), line.out);
        return ExitCode::done;
    }
    if (line.command == config::Command::import_folder) {
        train::run_import(world, line);
        return ExitCode::done;
    }
    if (line.command == config::Command::export_weights) {
        comm::Heartbeat heartbeat(world, watchdog);
        train::run_export(world, line, heartbeat, interruption);
        return ExitCode::done;
    }
    const DeckSource source = deck_of_command(world, line);  // 3. the deck
    line.deck = source.path;
    line.set = source.set;
    const auto times = line.costs.empty() ? config::Times::model : config::Times::from_file;
    config::Deck deck = parse(world, source, line.command, times);
    const bool saves = deck.saves_nothing().empty();
    if (line.max_hours > 0 && !saves) {
        const bool emulated = deck.run.device == "emulated";
        throw Error(ExitCode::bad_deck,
                    fmt::format("{}: run.{} saves nothing, so that a run could not go on after --max-hours; "
                                "leave it out",
                                line.deck, emulated ? "device: emulated" : "precision: fp64"),
                    Scope::all_ranks);
    }
    workload::Scenario scenario = workload::make_scenario(deck, times);  // and its section graph
    if (calibrates) {
        world.waiter().set_timeout(kSimulationS);
        const comm::Topology topology = comm::place_rank(world);
        backend::Device device = train::choose_device(world, topology, deck);
        calibration::run_calibration(world, topology, line.out,
                                     calibration::MeasuredDeck{deck, std::move(scenario), std::move(device)});
        return ExitCode::done;
    }
    const bool plans = line.command == config::Command::plan;
    if (plans || line.command == config::Command::simulate) {
        watchdog.doing(plans ? "the search for a plan" : "the simulation");
        watchdog.pause();
        world.waiter().set_timeout(kSimulationS);
        const std::optional<recorded::Run> measured = measured_run(world, line);
        comm::agree(world, [&] {
            if (world.rank() != 0) return;
            const recorded::Run* const run = measured ? &*measured : nullptr;
            if (plans)
                plan::run_plan(line, deck, source.text, std::move(scenario), run);
            else
                simulation::run_simulation(line, deck, std::move(scenario), run);
        });
        return ExitCode::done;
    }
    const bool elsewhere = !line.cluster.empty() || line.memory > 0;  // a dry run for another machine
    const bool placed =
        line.command == config::Command::train && !elsewhere && !(line.dry_run && world.size() == 1);
    if (const std::string refusal = graph::launch_refusal(scenario.graph, world.size());
        placed && !refusal.empty())
        throw Error(ExitCode::bad_deck, line.deck + ": " + refusal, Scope::all_ranks);
    world.waiter().set_timeout(deck.run.timeout_s);
    watchdog.set_timeout(deck.run.timeout_s);
    const comm::Topology topology = comm::place_rank(world);  // 4. cores and threads
    std::optional<workload::RankDevice> planned_device;
    if (elsewhere) {
        std::string cluster;
        comm::agree(world, [&] {
            if (world.rank() == 0 && !line.cluster.empty()) cluster = config::read_text(line.cluster);
        });
        world.broadcast(cluster);
        planned_device = train::planned_device_of(line, deck, cluster, scenario);
    } else {
        scenario = train::lay_on_nodes(world, topology, deck, std::move(scenario));
    }
    report.identify(world.rank(), topology.host);
    watchdog.identify(fmt::format("rank {} ({})", world.rank(), topology.host));
    interruption.set_saves(saves);
    comm::Heartbeat heartbeat(world, watchdog);
    const comm::RollCall roll_call(world, topology.host);
    train::RunContext context{
        .world = world,
        .watchdog = watchdog,
        .pulse = heartbeat,
        .topology = topology,
        .device = elsewhere ? backend::Device() : train::choose_device(world, topology, deck),
        .deck = std::move(deck),
        .scenario = std::move(scenario),
        .planned_device = std::move(planned_device),
        .end_job = [&](const Error& error) { end_job(error, world, report); }};
    if (line.command == config::Command::evaluate) {
        train::run_evaluation(context, line);  // 5. the work
        return ExitCode::done;
    }
    return train::run_training(context, line, interruption, report);
}

/// The exit code; errors end here, those that one rank has alone end the world.
int run_and_report(int argc, char** argv, const comm::Communicator& world, comm::Watchdog& watchdog,
                   train::Interruption& interruption, train::RunReport& report) {
    try {
        const auto code = static_cast<int>(run(argc, argv, world, watchdog, interruption, report));
        interruption.let_end();
        if (world.rank() == 0) report.write(code);
        return code;
    } catch (const std::exception& thrown) {
        interruption.let_end();
        const Error error = as_error(thrown);
        const int code = static_cast<int>(error.code());
        if (error.scope() == Scope::this_rank) {
            end_job(error, world, report);
        } else if (world.rank() == 0) {
            report.write(code, error.what());
            log::write_error(fmt::format("maestro: {}", error.what()));
        }
        return code;
    }
}

}  // namespace

int main(int argc, char** argv) {
    backend::set_library_environment();  // before MPI, which may use CUDA
    train::RunReport report;
    // Around all of MPI: its start and its end wait for other ranks, too.
    comm::Watchdog watchdog(
        {.timeout_s = start_timeout_s(),
         .on_hang =
             [&](const std::string& reason) { report.write(static_cast<int>(ExitCode::peer_lost), reason); },
         .abort = {}});
    watchdog.doing("the start of MPI");
    train::Interruption interruption(watchdog, report);
    try {
        comm::Environment environment(argc, argv);
        comm::Waiter waiter(start_timeout_s());
        waiter.report_to(&watchdog);
        const comm::Communicator world = comm::Communicator::world(waiter);
        watchdog.identify(fmt::format("rank {}", world.rank()));
        interruption.identify(world.rank(), world.size());
        watchdog.doing("the deck");
        log::start(world.rank() == 0);
        const int code = run_and_report(argc, argv, world, watchdog, interruption, report);
        // Before MPI ends: once one rank has ended with an error, the launcher kills the others.
        report.release_lock();
        watchdog.doing("the end of MPI");
        return code;
    } catch (const Error& error) {  // MPI did not start
        log::write_error(fmt::format("maestro: {}", error.what()));
        return static_cast<int>(error.code());
    }
}
