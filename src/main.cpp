// A run from start to end. Everything that holds MPI is destroyed before the environment; errors end up here.
#include <optional>

#include "base/log.hpp"
#include "calibration/calibrate.hpp"
#include "comm/environment.hpp"
#include "comm/heartbeat.hpp"
#include "comm/signals.hpp"
#include "comm/topology.hpp"
#include "comm/watchdog.hpp"
#include "config/command_line.hpp"
#include "simulation/simulation.hpp"
#include "train/agree.hpp"
#include "train/evaluator.hpp"
#include "train/trainer.hpp"

using namespace maestro;

namespace {

ExitCode run(int argc, char** argv, const comm::Communicator& world, comm::Waiter& waiter,
             train::RunReport& report) {
    const config::CommandLine line = config::parse_command_line(argc, argv);  // 1. what is asked
    if (line.answered) {
        log::info("{}", line.answer);
        return ExitCode::done;
    }
    comm::check_same_build(world);  // 2. by whom
    if (line.command == config::Command::calibrate) {
        calibration::run_calibration(world, comm::place_rank(world), line.out);
        return ExitCode::done;
    }
    std::string text;
    train::agree(world, [&] {
        if (world.rank() == 0) text = config::read_text(line.deck);
    });
    world.broadcast(text);
    const auto times = line.costs.empty() ? config::Times::model : config::Times::given;
    config::Deck deck =
        config::parse_deck(text, line.deck, line.set, line.command, times);  // 3. the deck and its graph
    if (line.command == config::Command::simulate) {
        train::agree(world, [&] {
            if (world.rank() == 0) simulation::run_simulation(line, deck);
        });
        return ExitCode::done;
    }
    const bool placed = line.command == config::Command::train && !(line.dry_run && world.size() == 1);
    if (const std::string refusal = graph::launch_refusal(deck.graph, world.size());
        placed && !refusal.empty())
        throw Error(ExitCode::bad_deck, line.deck + ": " + refusal, Scope::all_ranks);
    waiter.set_timeout(deck.run.timeout_s);
    const comm::Topology topology = comm::place_rank(world);  // 4. cores and threads
    report.on_host(topology.host);
    comm::catch_stop_signals();
    comm::Watchdog watchdog(
        {.timeout_s = deck.run.timeout_s,
         .rank = world.rank(),
         .host = topology.host,
         .on_hang =
             [&](const std::string& reason) { report.write(static_cast<int>(ExitCode::peer_lost), reason); },
         .abort = {}});
    comm::Heartbeat heartbeat(world, watchdog);
    waiter.report_to(&watchdog);
    const graph::SectionGraph graph = deck.graph;
    train::Launch launch{.world = world,
                         .watchdog = watchdog,
                         .pulse = heartbeat,
                         .topology = topology,
                         .deck = std::move(deck),
                         .graph = graph};
    ExitCode code = ExitCode::done;
    try {
        if (line.command == config::Command::evaluate)
            train::run_evaluation(launch, line);  // 5. the work
        else
            code = train::run_training(launch, line, report);
    } catch (...) {
        waiter.report_to(nullptr);
        throw;
    }
    waiter.report_to(nullptr);
    return code;
}

}  // namespace

int main(int argc, char** argv) {
    comm::Environment environment(argc, argv);
    comm::Waiter waiter;
    const comm::Communicator world = comm::Communicator::world(waiter);
    log::start(world.rank() == 0);
    train::RunReport report(world.rank());
    try {
        const auto code = static_cast<int>(run(argc, argv, world, waiter, report));
        if (world.rank() == 0) report.write(code);
        return code;
    } catch (const Error& error) {
        const int code = static_cast<int>(error.code());
        const bool alone = error.scope() == Scope::this_rank;
        if (alone || world.rank() == 0) {
            report.write(code, error.what());
            log::write_error(alone ? fmt::format("maestro: rank {}: {}", world.rank(), error.what())
                                   : fmt::format("maestro: {}", error.what()));
        }
        if (alone && world.size() > 1) comm::abort_world(code);
        return code;
    } catch (const std::exception& error) {
        report.write(static_cast<int>(ExitCode::broken_invariant), error.what());
        log::write_error(fmt::format("maestro: rank {}: {}", world.rank(), error.what()));
        comm::abort_world(static_cast<int>(ExitCode::broken_invariant));
    }
}
